"""The clock of all processes, and a thread's own time: CPU seconds, and seconds in which the thread was runnable without a core."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

now: Callable[[], float] = time.perf_counter  # CLOCK_MONOTONIC on Linux: the same clock in every process


class ThreadTimes:
    """Cumulative seconds of the thread that made this object, from /proc/thread-self/schedstat.

    The kernel counts the time on a CPU and the time on a run queue, in ns. A reading takes about 1 µs on a quiet core and up to 40 µs on a
    contended core; so it is done on sampled steps only.
    """

    def __init__(self) -> None:
        try:
            self._fd: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._fd = None
        self._last_runq_s = 0.0

    @property
    def available(self) -> bool:
        """Whether the kernel reports run-queue time."""
        return self._fd is not None

    def runq_s(self) -> float:
        """Seconds in which the thread waited for a core; 0 where the kernel does not report them (see `available`)."""
        if self._fd is None:
            return 0.0
        try:
            self._last_runq_s = int(os.pread(self._fd, 64, 0).split()[1]) * 1e-9
        except ProcessLookupError:  # the thread has ended: a program may train in a thread that ends before the process
            return self._last_runq_s
        return self._last_runq_s

    def cpu_s(self) -> float:
        """CPU seconds of the calling thread."""
        return time.thread_time()

    def cpu_and_runq_s(self) -> tuple[float, float]:
        """CPU seconds, and seconds in which the thread waited for a core, in one reading."""
        if self._fd is None:
            return time.thread_time(), 0.0
        cpu, runq = os.pread(self._fd, 64, 0).split()[:2]
        return int(cpu) * 1e-9, int(runq) * 1e-9

    def close(self) -> None:
        """Give the file back. Later readings are 0."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def process_cpu_s(pid: int) -> tuple[float, float]:
    """CPU seconds and run-queue seconds of the main thread of `pid`. Raises OSError when the process has ended."""
    with open(f"/proc/{pid}/schedstat", "rb") as file:
        cpu, runq = file.read().split()[:2]
    return int(cpu) * 1e-9, int(runq) * 1e-9
