"""Repeated timing of a piece of work, and the figure that follows from the times."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from functools import cache

import torch

from gpuconsole.agent.clock import ThreadTimes, now
from gpuconsole.model.machine import Reached, unit_of

LEAST, MOST = 3, 200
"""Limits of the number of repeats, whatever the budget."""


def repeats_s(work: Callable[[], object], device: torch.device, budget_s: float) -> list[float]:
    """Seconds of each repeat of `work` within `budget_s`, after a first repeat that does not count."""
    work()
    times: list[float] = []
    deadline = now() + budget_s
    while len(times) < LEAST or (len(times) < MOST and now() < deadline):
        times.append(once_s(work, device))
    return times


def once_s(work: Callable[[], object], device: torch.device) -> float:
    """Seconds from an idle device to an idle device. On a CPU without the time in which this thread waited for a core: otherwise the
    reference would depend on other processes."""
    synchronize(device)
    start = now()
    delay = _own_times().runq_s() if device.type == "cpu" else 0.0
    work()
    synchronize(device)
    if device.type != "cpu":
        return now() - start
    delay = _own_times().runq_s() - delay  # inside the times of the clock: a wait beside the work is no part of the difference
    return max(now() - start - delay, 1e-9)


@cache
def _own_times() -> ThreadTimes:
    """The times of the measuring thread; a process has one such thread."""
    return ThreadTimes()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def as_rate(name: str, amount: float, times: list[float], detail: str) -> Reached:
    """`amount` per second."""
    low = statistics.quantiles(times, n=4, method="inclusive")[0] if len(times) > 1 else times[0]
    best, median = amount / min(times), amount / statistics.median(times)
    return Reached(name, unit_of(name), best, median, _spread(times), len(times), detail, sustained=amount / low)


def as_time(name: str, times: list[float], detail: str) -> Reached:
    return Reached(name, unit_of(name), min(times), statistics.median(times), _spread(times), len(times), detail)


def missing(name: str, reason: str) -> Reached:
    return Reached(name, unit_of(name), reason=reason)


def _spread(times: list[float]) -> float | None:
    if len(times) < 2:
        return None
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / middle


def where_it_fits(measure: Callable[[int], float]) -> float:
    """What `measure` returns at the first divisor of its size, 1, 2, 4 or 8, for which the device has memory: beside a workload little may be
    free. Raises torch.OutOfMemoryError if the last one does not fit either."""
    for divisor in (1, 2, 4):
        with contextlib.suppress(torch.OutOfMemoryError):
            return measure(divisor)
        torch.cuda.empty_cache()
    return measure(8)
