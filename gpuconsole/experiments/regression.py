"""Is a run slower than the baseline by more than noise? Statistics on throughput in blocks, of runs at different times.

A trial's pairs stand side by side and share the machine's mood; a run and its baseline do not. So the noise has two parts: between
the blocks of a run, which follow each other and are alike, and between whole runs, which only several kept runs can tell.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from gpuconsole.experiments.blocks import MIN_STEPS, rate
from gpuconsole.experiments.statistics import MINIMUM_EFFECT, NORMAL_975, RUN_TO_RUN, always_valid, student
from gpuconsole.model.experiments.baseline import BaselineVerdict, RateChange
from gpuconsole.model.run import Step

BLOCK_S = 1.0
MIN_BLOCK_S = 0.25
FEW_BLOCKS = 12
"""A run too short for that many blocks of a second has shorter ones."""
MOST_BLOCKS = 60
MIN_BLOCKS = 4
RUNS_FOR_SPREAD = 3
"""From so many kept runs on, the spread between them is the measure of noise."""
USUAL_RUNS = 4
"""As many degrees of freedom as five kept runs have."""
SAME_WITHIN = math.log(1.05)
"""An interval within 5 % is `same`: the least gain that the diagnosis benchmark counts as a cause."""
MOST_CORRELATED = 0.9


class Estimate(NamedTuple):
    """A run's mean rate, its relative standard error, and how many independent blocks it is worth."""

    mean: float
    error: float
    worth: float


def block_rates(steps: Sequence[Step], contention_free: bool = False) -> tuple[float, ...]:
    """Work per second in successive blocks of about a second, at least `MIN_STEPS` steps and at most `MOST_BLOCKS` blocks.

    With `contention_free`, every block has steps on which run-queue delay was read, and their share of it is taken off the whole.
    """
    total = sum(step.wall_s for step in steps)
    block_s = max(MIN_BLOCK_S, min(BLOCK_S, total / FEW_BLOCKS), total / MOST_BLOCKS)
    found, block, seconds, sampled = [], list[Step](), 0.0, False
    for step in steps:
        block.append(step)
        seconds += step.wall_s
        sampled = sampled or step.runq is not None
        if seconds >= block_s and len(block) >= MIN_STEPS and (sampled or not contention_free):
            found.append(rate(block, False) / (1 - _delay_ratio(block) if contention_free else 1.0))
            block, seconds, sampled = [], 0.0, False
    return tuple(found)


def _delay_ratio(block: Sequence[Step]) -> float:
    """Run-queue delay over wall time on the steps on which it was read; below 1."""
    sampled = [step for step in block if step.runq is not None]
    return min(0.99, sum(sum(step.runq or ()) for step in sampled) / max(sum(step.wall_s for step in sampled), 1e-9))


def estimate(rates: Sequence[float]) -> Estimate:
    """The mean of successive block rates; needs two or more, above 0.

    Blocks that follow each other are alike: n of them with lag-1 correlation r are worth n (1 - r) / (1 + r) independent ones
    (an AR(1) process). r as estimated from few blocks is too small by about (1 + 4 r) / n (Kendall 1954), which is put back.
    """
    n, mean = len(rates), statistics.fmean(rates)
    offsets = [value - mean for value in rates]
    squares = sum(offset * offset for offset in offsets)
    if squares <= 0:
        return Estimate(mean, 0.0, n)
    seen = sum(one * after for one, after in pairwise(offsets)) / squares
    correlated = min(MOST_CORRELATED, max(0.0, seen + (1 + 4 * seen) / n))
    worth = max(2.0, n * (1 - correlated) / (1 + correlated))
    return Estimate(mean, math.sqrt(squares / (n - 1) / worth) / mean, worth)


def change(now: Sequence[float], kept: Sequence[Sequence[float]], live: bool = False) -> RateChange | None:
    """Throughput `now` against the `kept` runs', each as block rates; None while there are too few blocks.

    The noise within runs is Welch's, over blocks. To it comes what whole runs differ by: `RUN_TO_RUN` while one or two are kept; from
    three on their own spread, with `RUN_TO_RUN` weighing as `USUAL_RUNS` degrees of freedom beside it, so that three that happen to lie
    together prove nothing (a moderated t, Smyth 2004). With `live`, an interval that holds however often one looks.
    """
    usable = [rates for rates in kept if len(rates) >= MIN_BLOCKS]
    if len(now) < MIN_BLOCKS or not usable:
        return None
    new, old = estimate(now), [estimate(rates) for rates in usable]
    log_rates = [math.log(one.mean) for one in old]
    k = len(old)
    within = new.error**2 * ((always_valid(new.worth) / NORMAL_975) ** 2 if live else 1.0)
    if k >= RUNS_FOR_SPREAD:
        degrees = USUAL_RUNS + k - 1.0
        between = (USUAL_RUNS * RUN_TO_RUN**2 + (k - 1) * statistics.variance(log_rates)) / degrees
        variance = max(between, within) + between / k  # the spread between runs has the noise within them in it
    else:
        parts = [(within, new.worth - 1), *((one.error**2 / k**2, one.worth - 1) for one in old)]
        parts.append((RUN_TO_RUN**2 * (1 + 1 / k), math.inf))
        variance, degrees = sum(part for part, _ in parts), _welch(parts)
    middle, half = math.log(new.mean) - statistics.fmean(log_rates), student(degrees) * math.sqrt(variance)
    return RateChange(*(math.expm1(max(-20.0, min(20.0, value))) for value in (middle, middle - half, middle + half)))


def _welch(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances (Welch-Satterthwaite), each with its own."""
    below = sum(part**2 / degrees for part, degrees in parts)
    return sum(part for part, _ in parts) ** 2 / below if below > 0 else math.inf


def verdict(found: RateChange, excused: float = 0.0) -> BaselineVerdict:
    """`slower` or `faster` by 2 % at the least and beyond noise, `same` within 5 %, else `undecided`.

    `excused` is the share of time that contention took from one side more than from the other (above 0: from this run): it may
    explain as much.
    """
    low, high = math.log1p(found.low), math.log1p(found.high)
    explained = math.log1p(-min(0.99, abs(excused)))
    if high < -MINIMUM_EFFECT + (explained if excused > 0 else 0.0):
        return "slower"
    if low > MINIMUM_EFFECT - (explained if excused < 0 else 0.0):
        return "faster"
    if not excused and low > -SAME_WITHIN and high < SAME_WITHIN:
        return "same"
    return "undecided"
