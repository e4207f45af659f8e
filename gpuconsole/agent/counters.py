"""Counters of a training process that no phase of the step breakdown shows. They are cumulative;
the console takes differences.

And the figures of the C library's heap: memory that it has taken from the system, and the part of
that which is in use. glibc 2.33 and newer reports both figures for all its arenas (mallinfo2);
blocks that glibc maps individually count as in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import operator
import os
import sys
from collections import deque
from functools import cache
from typing import Any

from .clock import now
from .descriptors import ProcFile

# --- the heap of the C library --------------------------------------------------------------------


class _MallInfo(ctypes.Structure):
    """struct mallinfo2 of glibc's malloc.h.

    `arena`: bytes of all heaps; `hblkhd`: bytes in individually mapped blocks; `uordblks`: in use.
    """

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


@cache
def glibc() -> ctypes.CDLL | None:
    """The C library, if it is a glibc that has mallinfo2."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _MallInfo
    return library


def heap_stats() -> dict[str, float]:
    """`heap_allocated_bytes` and `heap_reserved_bytes` of the whole process, libraries included;
    empty where the C library has no figures."""
    library = glibc()
    if library is None:
        return {}
    info = library.mallinfo2()
    return {
        "heap_allocated_bytes": float(info.uordblks + info.hblkhd),
        "heap_reserved_bytes": float(info.arena + info.hblkhd),
    }


# --- the counters ---------------------------------------------------------------------------------

MEMORY_EVERY_S = 0.5
"""Period of the memory reading. One reading between two steps takes 0.1 ms, because none of its
code and data is in a cache then."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_STAMPS = 65_536
"""Of garbage collections, between two readings."""


def stamped(stamps: deque[float]) -> Any:
    """A function for `gc.callbacks` that appends the time of the start of a collection to `stamps`,
    and minus the time of its end.

    All of it is C. Python swallows what a callback raises, and a line of Python would run the
    handlers of signals that have come during the collection: an exception of the program's handler,
    such as KeyboardInterrupt, would be lost.
    """
    moments: dict[str, Any] = {"start": iter(now, None), "stop": map(operator.neg, iter(now, None))}
    noted = {
        phase: property(functools.partial(next, map(stamps.append, times)))
        for phase, times in moments.items()
    }  # next(iterator, default)
    # getattr(stamps, phase, info) gets the property
    callback: Any = functools.partial(getattr, type("Stamps", (), noted)())
    callback.__name__ = "collected"
    return callback


class ProcessCounters:
    """Counts Python's garbage collections and reads the process's memory."""

    def __init__(self) -> None:
        self._collections = 0
        self._pause_s = 0.0
        self._began = 0.0
        self._stamps = deque[float](maxlen=MAX_STAMPS)
        self._memory_read = 0.0
        # psutil opens the file for each reading and names all its fields: nine times as long
        self._statm = ProcFile("/proc/self/statm")
        self._collected = stamped(self._stamps)
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        with contextlib.suppress(ValueError):  # the program has emptied the list
            gc.callbacks.remove(self._collected)
        self._statm.close()

    def read(self) -> dict[str, float]:
        """`gc.collections`, `gc.pause_s` (seconds in Python's garbage collector), and twice a
        second on Linux `host.private_bytes`.

        `host.private_bytes`: resident memory without files, without shared pages and without what
        the C library holds free. A leak first uses up the free part of the heap, and a heap that
        settles only enlarges that part.
        """
        self._count_collections()
        counters = {"gc.collections": float(self._collections), "gc.pause_s": self._pause_s}
        if now() - self._memory_read >= MEMORY_EVERY_S and (pages := self._statm.numbers()):
            self._memory_read = now()
            counters["host.private_bytes"] = self._private_bytes(*pages[1:3])
        return counters

    def _private_bytes(self, resident: int, shared: int) -> float:
        """The arguments are in pages, see proc_pid_statm(5)."""
        heap = heap_stats()
        free = heap.get("heap_reserved_bytes", 0.0) - heap.get("heap_allocated_bytes", 0.0)
        return max(0.0, (resident - shared) * PAGE_BYTES - free)

    def _count_collections(self) -> None:
        while self._stamps:
            t = self._stamps.popleft()
            if t >= 0:
                self._began = t
            elif self._began:
                self._collections += 1
                self._pause_s += -t - self._began
                self._began = 0.0


def compile_counters() -> dict[str, float]:
    """What torch.compile has done since the process began, from torch's own counters. A reading
    takes microseconds.

    `compile.graphs`: graphs compiled; each shape that needed its own graph counts.
    `compile.graph_breaks`: places where a graph had to end early. `compile.given_up`: functions
    that run uncompiled because they reached the recompile limit, or failed. `compile.total_s`: time
    spent in compilation.
    """
    import torch._dynamo.utils as dynamo  # no public way to these counters (torch 2.13)

    frames = dynamo.counters["frames"]
    spent = dynamo.calculate_time_spent()  # torch 2.5: an empty dict before the first compilation
    return {
        "compile.graphs": float(dynamo.counters["stats"]["unique_graphs"]),
        "compile.graph_breaks": float(sum(dynamo.counters["graph_break"].values())),
        "compile.given_up": float(frames["total"] - frames["ok"]),
        "compile.total_s": spent.get("total_wall_time", 0.0),
    }
