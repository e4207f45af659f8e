"""What a training process has done beside its steps since it began: totals that the console takes differences of."""

from __future__ import annotations

import gc
import os
from typing import Any

import torch

from gpuconsole.agent.clock import now
from gpuconsole.agent.memory_stats import allocator_stats

MEMORY_EVERY_S = 0.5
"""Reading the process's memory costs a tenth of a millisecond between two steps, when nothing of it is in a cache."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Totals:
    """Counts what no phase of the account can show. Read at every message; memory not at each."""

    def __init__(self) -> None:
        self.exchanges = 0
        self._collections = 0
        self._pause_s = 0.0
        self._began = 0.0
        self._memory_read = 0.0
        try:  # kept open: psutil, which opens it anew each time and names all that it reads, takes nine times as long
            self._statm: int | None = os.open("/proc/self/statm", os.O_RDONLY)
        except OSError:
            self._statm = None
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        gc.callbacks.remove(self._collected)
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None

    def read(self, restarts: tuple[int, float], steps: int) -> dict[str, float]:
        """`gc.pause_s`: seconds in Python's garbage collector. `host.private_bytes` (twice a second, on Linux): resident memory that no file
        backs and nobody shares, less what the C library holds free: a leak first eats that, and what settles only enlarges it.

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
        if self._statm is not None and now() - self._memory_read >= MEMORY_EVERY_S:
            self._memory_read = now()
            totals["host.private_bytes"] = self._private_bytes(self._statm)
        return totals

    def _private_bytes(self, statm: int) -> float:
        _, resident, shared, *_ = os.pread(statm, 128, 0).split()  # in pages, see proc_pid_statm(5)
        heap = allocator_stats(torch.device("cpu"))
        free = heap.get("heap_reserved_bytes", 0.0) - heap.get("heap_allocated_bytes", 0.0)
        return max(0.0, (int(resident) - int(shared)) * PAGE_BYTES - free)

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = now()
        else:
            self._collections += 1
            self._pause_s += now() - self._began
