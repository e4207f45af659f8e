"""What a training process has done beside its steps since it began: totals that the console takes differences of."""

from __future__ import annotations

import gc
from typing import Any

import psutil
import torch

from gpuconsole.workloads.clock import now
from gpuconsole.workloads.memory_stats import allocator_stats

MEMORY_EVERY_S = 0.5
"""Reading the process's memory costs a quarter of a millisecond between two steps, when nothing of it is in a cache."""


class Totals:
    """Counts what no phase of the account can show. Read at every message; memory not at each."""

    def __init__(self) -> None:
        self.exchanges = 0
        self._collections = 0
        self._pause_s = 0.0
        self._began = 0.0
        self._memory_read = 0.0
        self._process = psutil.Process()
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        gc.callbacks.remove(self._collected)

    def read(self, restarts: tuple[int, float], steps: int) -> dict[str, float]:
        """`gc.pause_s`: seconds in Python's garbage collector. `host.private_bytes` (twice a second): resident memory that no file backs and
        nobody shares, less what the C library holds free: a leak first eats that, and what settles only enlarges it.

        `loader.restart_s`: seconds from an epoch's end to the next one's first batch. `comm.exchanges`: passes in which gradients travelled.
        """
        totals = {
            "work.steps": float(steps),
            "gc.collections": float(self._collections),
            "gc.pause_s": self._pause_s,
            "loader.restarts": float(restarts[0]),
            "loader.restart_s": restarts[1],
            "comm.exchanges": float(self.exchanges),
        }
        if now() - self._memory_read >= MEMORY_EVERY_S:
            self._memory_read = now()
            totals["host.private_bytes"] = self._private_bytes()
        return totals

    def _private_bytes(self) -> float:
        memory, heap = self._process.memory_info(), allocator_stats(torch.device("cpu"))
        free = heap.get("heap_reserved_bytes", 0.0) - heap.get("heap_allocated_bytes", 0.0)
        return float(max(0.0, memory.rss - memory.shared - free))

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = now()
        else:
            self._collections += 1
            self._pause_s += now() - self._began
