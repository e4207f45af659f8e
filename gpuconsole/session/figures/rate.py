"""The rate of work: work over wall time. All outputs take their rates from here: headline, summary,
gate, baselines, comparison and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpuconsole.model.run import Distribution, Step
from gpuconsole.session.figures.distributions import weighted

MAX_CORRELATED = 0.9
MAX_DELAY = 0.99


class RateBlock(NamedTuple):
    """A stretch of a run: its work per second, and its seconds.

    The seconds are the weight of the block. An evaluation of ten seconds is one block, and it
    counts like twenty blocks of half a second.
    """

    rate: float
    seconds: float


Work = Callable[[Step], float]


def tokens_of(step: Step) -> float:
    return step.tokens


def samples_of(step: Step) -> float:
    return step.samples


def work_over_time(steps: Sequence[Step], work: Work) -> float:
    """Work per second of wall time over all `steps`; 0 without steps."""
    seconds = sum(step.wall_s for step in steps)
    return sum(map(work, steps)) / seconds if seconds > 0 else 0.0


def waited_for_others(runq_ratio: float | None, others_ratio: float | None) -> float:
    """Return the share of the time that other programs have taken from the training thread.

    `runq_ratio`: the share in which the thread waited for a core. `others_ratio`: the share of the
    CPUs that other programs kept busy. A scheduler that divides the CPUs equally makes a thread
    wait for other programs in no larger share of the time than that. The job itself has caused the
    rest of the wait, with its own threads and workers. None: not known. Where the load of other
    programs is not known, they have perhaps caused the whole wait.
    """
    return min(MAX_DELAY, runq_ratio or 0.0, 1.0 if others_ratio is None else others_ratio)


def contention_free(
    per_s: float, runq_ratio: float | None, others_ratio: float | None = None
) -> float:
    """Return the rate `per_s` without the wait for other programs (see `waited_for_others`)."""
    return per_s / (1 - waited_for_others(runq_ratio, others_ratio))


def blocks_of(steps: Sequence[Step], work: Work, block_s: float, least: int = 1) -> list[RateBlock]:
    """Divide `steps` into successive blocks of at least `block_s` seconds and at least `least`
    steps. Steps that are left over join the last block, so the blocks contain all work and all time
    of `steps`."""
    sums: list[tuple[float, float]] = []
    amount, seconds, count = 0.0, 0.0, 0
    for step in steps:
        amount, seconds, count = amount + work(step), seconds + step.wall_s, count + 1
        if seconds >= block_s and count >= least:
            sums.append((amount, seconds))
            amount, seconds, count = 0.0, 0.0, 0
    if seconds > 0:
        before = sums.pop() if sums else (0.0, 0.0)
        sums.append((before[0] + amount, before[1] + seconds))
    return [RateBlock(amount / seconds, seconds) for amount, seconds in sums]


def mean_rate(blocks: Sequence[RateBlock]) -> float:
    """Work over wall time of all `blocks`. Raises ZeroDivisionError without time."""
    return sum(block.rate * block.seconds for block in blocks) / sum(
        block.seconds for block in blocks
    )


def rate_distribution(blocks: Sequence[RateBlock]) -> Distribution | None:
    """The rate of `blocks`: work over wall time, and the spread of the blocks weighed by their
    seconds. None without blocks."""
    total = sum(block.seconds for block in blocks)
    return (
        weighted((block.rate, block.seconds * len(blocks) / total) for block in blocks)
        if total > 0
        else None
    )


class Estimate(NamedTuple):
    """The mean rate of a run, its relative standard error, and the equivalent number of independent
    blocks."""

    mean: float
    error: float
    worth: float


def estimate(blocks: Sequence[RateBlock]) -> Estimate:
    """The mean rate of successive blocks: two or more, with a mean above 0.

    The rate is a ratio, work over time. Its error is that of a ratio estimator: each block counts
    with the square of its share of the time (Cochran 1977, section 6.4). Successive blocks are
    correlated: n blocks with lag-1 correlation r are equivalent to n (1 - r) / (1 + r) independent
    blocks (an AR(1) process). An estimate of r from few blocks is too small by about (1 + 4 r) / n
    (Kendall 1954), so this amount is added.
    """
    n, mean = len(blocks), mean_rate(blocks)
    usual = sum(block.seconds for block in blocks) / n
    offsets = [(block.rate - mean) * block.seconds / usual for block in blocks]
    squares = sum(offset * offset for offset in offsets)
    if squares <= 0:
        return Estimate(mean, 0.0, n)
    seen = sum(offset * after for offset, after in pairwise(offsets)) / squares
    correlated = min(MAX_CORRELATED, max(0.0, seen + (1 + 4 * seen) / n))
    worth = max(2.0, n * (1 - correlated) / (1 + correlated))
    return Estimate(mean, math.sqrt(squares / (n - 1) / worth) / mean, worth)
