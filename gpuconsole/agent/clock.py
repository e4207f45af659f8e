"""The clock of all processes, and a thread's own time: CPU seconds, and seconds in which the thread
was runnable without a core."""

from __future__ import annotations

import time
from collections.abc import Callable

from .descriptors import ProcFile

# CLOCK_MONOTONIC on Linux: the same clock in every process
now: Callable[[], float] = time.perf_counter


class ThreadTimes:
    """Cumulative seconds of the thread that made this object, from /proc/thread-self/schedstat.

    The kernel counts the time on a CPU and the time on a run queue, in ns. A reading takes about 1
    µs on a quiet core and up to 40 µs on a contended core; so it is done on sampled steps only.
    After the thread has ended, and after `close`, the seconds stay as they were last.
    """

    def __init__(self) -> None:
        self._file = ProcFile("/proc/thread-self/schedstat")
        self._runq_s = 0.0

    @property
    def available(self) -> bool:
        """Whether the kernel reports run-queue time."""
        return not self._file.gone

    def runq_s(self) -> float:
        """Seconds in which the thread waited for a core; 0 where the kernel does not report them
        (see `available`). Never raises."""
        if numbers := self._file.numbers():
            self._runq_s = numbers[1] * 1e-9
        return self._runq_s

    def cpu_s(self) -> float:
        """CPU seconds of the calling thread."""
        return time.thread_time()

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def process_cpu_s(pid: int) -> tuple[float, float]:
    """CPU seconds and run-queue seconds of the main thread of `pid`. Raises OSError when the
    process has ended."""
    with open(f"/proc/{pid}/schedstat", "rb") as file:
        cpu, runq = file.read().split()[:2]
    return int(cpu) * 1e-9, int(runq) * 1e-9
