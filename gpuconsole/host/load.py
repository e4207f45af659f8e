"""Measure the CPU load of other programs on the CPUs that a run may use. This is the whole load of
these CPUs, minus the load of this console and its processes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import psutil

from gpuconsole.host.cores import allowed_cores
from gpuconsole.model.machine import Process

# --- CPU load of other programs on the CPUs that a run may use ------------------------------------

FIRST_SPAN_S = 2.0
NOT_BUSY = ("idle", "iowait", "steal", "guest", "guest_nice")
"""Fields of psutil.cpu_times that do not count as load. `steal` is time that the hypervisor takes;
`user` already contains guest time."""
LATER_SPANS = 1.25
"""Each interval between two readings is longer than the previous interval by this factor. A reading
scans all of /proc, so an hour has only 35 readings."""
ONLINE = Path("/sys/devices/system/cpu/online")


class OtherLoad:
    """The mean load between the first and the last reading."""

    def __init__(self) -> None:
        self._first: tuple[float, float, float] | None = None
        self._last: tuple[float, float, float] | None = None

    @property
    def ratio(self) -> float | None:
        """Return the share of the usable CPUs that other programs kept busy, 0 to 1. None before
        the second reading."""
        if self._first is None or self._last is None:
            return None
        seconds, all_s, own_s = (
            late - early for early, late in zip(self._first, self._last, strict=True)
        )
        return min(1.0, max(0.0, (all_s - own_s) / seconds / allowed_cores()))

    async def read(self) -> None:
        """Take a reading if the next reading is due. Raises OSError and psutil.Error."""
        if self._first is None:
            self._first = await asyncio.to_thread(_reading)
            return
        span = (self._last or self._first)[0] - self._first[0]
        if time.monotonic() - self._first[0] >= max(FIRST_SPAN_S, LATER_SPANS * span):
            self._last = await asyncio.to_thread(_reading)


def busy_s() -> float:
    """Return the CPU seconds of all programs since the start of the machine, on the CPUs that this
    process may use.

    psutil lists the online CPUs without their numbers. If this list and the kernel's list differ in
    length, the container has its own CPU numbers (lxcfs). Then all listed CPUs count.
    """
    times = psutil.cpu_times(percpu=True)
    online = _online()
    if hasattr(os, "sched_getaffinity") and len(online) == len(times):
        usable = os.sched_getaffinity(0)
        times = [cpu for number, cpu in zip(online, times, strict=True) if number in usable]
    return float(sum(sum(cpu) - sum(getattr(cpu, name, 0.0) for name in NOT_BUSY) for cpu in times))


def _online() -> list[int]:
    """Return the numbers of the online CPUs in ascending order. Empty if the kernel does not list
    the online CPUs."""
    try:
        ranges = [part.partition("-") for part in ONLINE.read_text().strip().split(",") if part]
    except OSError:
        return []
    return [
        number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)
    ]


def _reading() -> tuple[float, float, float]:
    """Return the clock, the CPU seconds of all programs, and the CPU seconds of this process and
    its children, including ended children."""
    busy = busy_s()
    own = 0.0
    console = psutil.Process(os.getpid())
    for process in (console, *console.children(recursive=True)):
        try:
            own += sum(process.cpu_times()[:4])
        except psutil.Error:  # an ended process: the time of its parent now contains its time
            continue
    return time.monotonic(), busy, own


class OtherCores:
    """Mean number of CPUs that other processes have kept busy since the creation of this object.
    This process and its ended children do not count."""

    def __init__(self) -> None:
        self._since, self._busy_s, self._own_s = time.monotonic(), busy_s(), _own_s()

    def mean(self) -> float:
        """Return the mean number of busy CPUs among the CPUs that this process may use."""
        wall_s = time.monotonic() - self._since
        return max(0.0, (busy_s() - self._busy_s - (_own_s() - self._own_s)) / wall_s)


def _own_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


# --- which processes of this machine belong to this console ---------------------------------------


class OwnProcesses:
    """The console and all processes that the console started, directly or indirectly. Each process
    is checked once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, float], bool] = {}

    def has(self, process: Process) -> bool:
        """Return whether `process` is the console or was started by it. False also for an invisible
        process (of another container or user), and for a process that has just ended."""
        if process.started <= 0:
            return False
        key = process.pid, process.started
        if key not in self._known:
            try:
                self._known[key] = os.getpid() in [
                    process.pid,
                    *(parent.pid for parent in psutil.Process(process.pid).parents()),
                ]
            except psutil.Error:
                return False
        return self._known[key]
