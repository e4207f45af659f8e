"""How busy other programs keep the cores that a run may use: all that is busy there, less what this console and its children use."""

from __future__ import annotations

import asyncio
import os
import time

import psutil

from gpuconsole.machine.environment import cores

FIRST_SPAN_S = 2.0
NOT_BUSY = ("idle", "iowait", "steal", "guest", "guest_nice")
LATER_SPANS = 1.25
"""A reading goes through all of /proc, so they are ever further apart: 35 in an hour."""


class OthersLoad:
    """From one reading to the last one: the mean over a run that the two enclose."""

    def __init__(self) -> None:
        self._first: tuple[float, float, float] | None = None
        self._last: tuple[float, float, float] | None = None

    @property
    def ratio(self) -> float | None:
        """Share of the cores that this console may use which others kept busy; None before there are two readings."""
        if self._first is None or self._last is None:
            return None
        seconds, all_s, own_s = (late - early for early, late in zip(self._first, self._last, strict=True))
        return min(1.0, max(0.0, (all_s - own_s) / seconds / cores()))

    async def look(self) -> None:
        """Take a reading, if it is time for one."""
        if self._first is None:
            self._first = await asyncio.to_thread(_reading)
            return
        span = (self._last or self._first)[0] - self._first[0]
        if time.monotonic() - self._first[0] >= max(FIRST_SPAN_S, LATER_SPANS * span):
            self._last = await asyncio.to_thread(_reading)


def busy_s() -> float:
    """CPU seconds of everything on the cores that this process may use, since the machine was started.

    What a hypervisor takes (`steal`) is no program of this machine; guests are counted in `user` already.
    """
    times = psutil.cpu_times(percpu=True)
    here = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
    return float(sum(sum(times[core]) - sum(getattr(times[core], name, 0.0) for name in NOT_BUSY) for core in here))


def _reading() -> tuple[float, float, float]:
    """The clock, and CPU seconds so far: of everything on these cores, and of this process with all its children, dead ones included."""
    busy = busy_s()
    own = 0.0
    console = psutil.Process(os.getpid())
    for process in (console, *console.children(recursive=True)):
        try:
            own += sum(process.cpu_times()[:4])
        except psutil.Error:  # ended since; its time is its parent's now
            continue
    return time.monotonic(), busy, own


class OtherCores:
    """Cores that processes other than this one and its ended children keep busy, from the construction of this object on."""

    def __init__(self) -> None:
        self._since, self._busy_s, self._own_s = time.monotonic(), busy_s(), _own_s()

    def mean(self) -> float:
        """Mean number of busy cores so far, of the cores that this process may use."""
        wall_s = time.monotonic() - self._since
        return max(0.0, (busy_s() - self._busy_s - (_own_s() - self._own_s)) / wall_s)


def _own_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
