"""Statistics of measured rates: trials (pairs of blocks), sweeps (repeats of several points), and whole runs (blocks of one run).

All functions are pure: numbers in, numbers out.

Trials and sweeps are evaluated after every new measurement, and they stop as soon as the result is clear. An ordinary 95 % interval does not
hold then: with enough evaluations it excludes the truth sooner or later. So both use confidence sequences, which hold at every moment.

A run and its baseline were measured at different times. Their noise has two parts: between the blocks of a run, which follow each other and
are correlated, and between whole runs, which can be estimated from several kept runs only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

from gpuconsole.model.experiments.baseline import BaselineVerdict, RateChange
from gpuconsole.model.experiments.trial import Method, Speedup, Verdict

ALPHA = 0.05
"""Probability that an interval misses the truth."""
RHO_SQUARED = 0.88
"""Makes a confidence sequence tightest near ten pairs: (-2 ln a + ln(-2 ln a) + 1) / 10 (Waudby-Smith et al. 2021, "Time-uniform central
limit theory and asymptotic confidence sequences", section 2)."""
MIN_PAIRS = 4
"""Minimum number of pairs of blocks, or of repeats of a sweep point, for a decision."""
MINIMUM_EFFECT = math.log(1.02)
"""A difference below 2 % counts as no difference: the interval of an A/A run on a shared machine has excluded 0 by less than 2 %."""
NORMAL_975 = 1.96
"""The 97.5 % quantile of the normal distribution."""
RUN_TO_RUN = 0.02
"""Assumed standard deviation between equal runs, until three runs are known: the same as MINIMUM_EFFECT. Six equal runs under equal
load on a shared two-core VM differed by 2.7 %."""
BETWEEN: dict[Method, float] = {
    "live ABBA": 0.0,
    "two workers ABBA": math.sqrt(2) * RUN_TO_RUN,
    "restarts ABBA": math.sqrt(2) * RUN_TO_RUN,
}
"""Standard deviation of the log ratio between the two sides of a trial that have the same settings. Two processes differ by RUN_TO_RUN each,
and this difference is the same in every pair."""
LEAST_BETWEEN_PROCESSES = math.expm1(NORMAL_975 * BETWEEN["two workers ABBA"] + MINIMUM_EFFECT)
"""The smallest gain that a trial with one process per side can prove: 8 %."""
MIN_BLOCKS = 4
"""Minimum number of blocks of a run for a comparison with another run."""
RUNS_FOR_SPREAD = 3
"""From this number of kept runs on, the noise is estimated from the spread between them."""
USUAL_RUNS = 4
"""Weight of RUN_TO_RUN against that spread, in degrees of freedom: the weight of five runs."""
SAME_WITHIN = math.log(1.05)
"""An interval within 5 % is `same`: 5 % is the smallest gain that the diagnosis benchmark counts as a cause."""
MOST_CORRELATED = 0.9
_T_975 = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
    12: 2.179,
    16: 2.120,
    24: 2.064,
    40: 2.021,
}


# --- quantiles and confidence sequences ----------------------------------------------------------------------


def student(degrees: float) -> float:
    """The 97.5 % quantile of Student's t, for the next smaller `degrees` in a table.

    `gpuconsole verify` computes the intervals of a certificate again and expects the same digits: so this table must not change.
    """
    return NORMAL_975 if degrees >= 60 else _T_975[max(known for known in _T_975 if known <= max(1, degrees))]


def student_quantile(degrees: int, alpha: float) -> float:
    """t with P(|T| > t) = `alpha`, for a whole number of `degrees` of freedom >= 1; 0 < `alpha` < 1.

    The distribution function is the finite series of Abramowitz and Stegun (1964), 26.7.3 and 26.7.4; it is inverted by bisection.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_within(middle, degrees) < 1 - alpha:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def _student_within(angle: float, degrees: int) -> float:
    """P(|T| < t), where `angle` is atan(t / sqrt(degrees))."""
    term, total = (math.cos(angle), math.cos(angle)) if degrees % 2 else (1.0, 1.0)
    for n in range(3 if degrees % 2 else 2, degrees - 1, 2):
        term *= math.cos(angle) ** 2 * (n - 1) / n
        total += term
    if degrees % 2 == 0:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if degrees > 1 else 0.0))


def always_valid(n: float, alpha: float = ALPHA) -> float:
    """Half-width, in standard errors, of the confidence sequence at level 1 - `alpha` after `n` values.

    sqrt( 2 (n r^2 + 1) / (n r^2) ln( sqrt(n r^2 + 1) / alpha ) ) (Waudby-Smith et al. 2021, section 2). It replaces the normal
    quantile if the result is evaluated after every value.
    """
    scaled = n * RHO_SQUARED + 1
    return math.sqrt(2 * scaled / (n * RHO_SQUARED) * math.log(math.sqrt(scaled) / alpha))


def confidence_sequence(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of `values` with a 95 % confidence sequence: mean, low, high.

    The interval is valid after every value and at every moment of stopping. The deviation is estimated from few pairs, so the interval is
    widened by Student's t over the normal quantile. Raises ValueError for fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError("an interval needs at least two pairs")
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    half = deviation / math.sqrt(n) * always_valid(n) * student(n - 1) / NORMAL_975
    return mean, mean - half, mean + half


def simultaneous_interval(values: Sequence[float], intervals: int) -> tuple[float, float] | None:
    """A confidence sequence for the mean of `values`, one of several `intervals` that must hold together; None for fewer than two values.

    Each interval has the level 1 - ALPHA / `intervals` (Bonferroni's inequality; Dunn 1961). So with 95 % probability all intervals hold, after
    every value, and a comparison between any two of them holds too. The interval is widened for few values like `confidence_sequence`.
    """
    n = len(values)
    if n < 2:
        return None
    alpha = ALPHA / max(1, intervals)
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    few = student_quantile(n - 1, alpha) / NormalDist().inv_cdf(1 - alpha / 2)
    half = deviation / math.sqrt(n) * always_valid(n, alpha) * few
    return mean - half, mean + half


# --- trials: pairs of blocks ---------------------------------------------------------------------------------


def speedup(log_ratios: Sequence[float], between: float = 0.0) -> Speedup | None:
    """The effect as a ratio of throughputs with its interval; None for fewer than two pairs. `between`: see BETWEEN."""
    if len(log_ratios) < 2:
        return None
    mean, low, high = _widened(confidence_sequence(log_ratios), between)
    return Speedup(*(math.exp(min(20.0, max(-20.0, value))) for value in (mean, low, high)))


def resolution(null_log_ratios: Sequence[float], pairs: int, between: float = 0.0) -> float | None:
    """The smallest effect, as a ratio, that `pairs` pairs can distinguish from no effect; None for fewer than two null pairs.

    In the order A B, B A, A B every second block follows a block of the same side. The log ratios of these neighbours have the mean 0 and
    the spread of an ordinary pair. So they are an A/A test without extra measurements.
    """
    if len(null_log_ratios) < 2 or pairs < 1:
        return None
    return math.expm1(min(20.0, math.hypot(_null_half_width(null_log_ratios, pairs), NORMAL_975 * between)))


def pairs_needed(null_log_ratios: Sequence[float], between: float, speedup: float | None, most: int) -> int:
    """The number of pairs after which a trial with this noise will probably end: MIN_PAIRS to `most`.

    It ends when the interval of an effect `speedup` (a ratio) excludes no effect, or when more pairs add little (see `exhausted`). Without null
    pairs the noise is unknown, and the answer is `most`.
    """
    if len(null_log_ratios) < 2:
        return most
    effect = abs(math.log(speedup)) if speedup else 0.0
    anyway = NORMAL_975 * between
    for pairs in range(MIN_PAIRS, most):
        half = _null_half_width(null_log_ratios, pairs)
        if math.hypot(half, anyway) + MINIMUM_EFFECT < effect or half < anyway / 2:
            return pairs
    return most


def _null_half_width(null_log_ratios: Sequence[float], pairs: int) -> float:
    spread = math.sqrt(statistics.fmean(value * value for value in null_log_ratios))
    return spread / math.sqrt(pairs) * always_valid(pairs) * student(len(null_log_ratios)) / NORMAL_975


def _widened(interval: tuple[float, float, float], between: float) -> tuple[float, float, float]:
    """`interval` widened by the spread between two sides with the same settings. More pairs do not reduce this spread."""
    mean, low, high = interval
    anyway = NORMAL_975 * between
    return mean, mean - math.hypot(mean - low, anyway), mean + math.hypot(high - mean, anyway)


def exhausted(log_ratios: Sequence[float], null_log_ratios: Sequence[float], between: float) -> bool:
    """Whether the difference between the two sides makes up most of the interval, so that more pairs add little."""
    if len(log_ratios) < MIN_PAIRS:
        return False
    mean, _, high = confidence_sequence(log_ratios)
    by_nulls = _null_half_width(null_log_ratios, len(log_ratios)) if len(null_log_ratios) >= 2 else 0.0
    return max(high - mean, by_nulls) < NORMAL_975 * between / 2


def verdict(log_ratios: Sequence[float], null_log_ratios: Sequence[float] = (), between: float = 0.0) -> Verdict | None:
    """win, no_gain or worse as soon as the interval proves the verdict; None before.

    The deviation of a few pairs can be too small by chance. So a win, or a loss, must also exceed the resolution by the null pairs.
    """
    if len(log_ratios) < MIN_PAIRS:
        return None
    mean, low, high = confidence_sequence(log_ratios)
    if len(null_log_ratios) >= 2:
        half = _null_half_width(null_log_ratios, len(log_ratios))
        low, high = min(low, mean - half), max(high, mean + half)
    _, low, high = _widened((mean, low, high), between)
    if low > MINIMUM_EFFECT:
        return "win"
    if high < -MINIMUM_EFFECT:
        return "worse"
    if high < MINIMUM_EFFECT:
        return "no_gain"
    return None


# --- whole runs: successive blocks ---------------------------------------------------------------------------


class Estimate(NamedTuple):
    """The mean rate of a run, its relative standard error, and the equivalent number of independent blocks."""

    mean: float
    error: float
    worth: float


def estimate(rates: Sequence[float]) -> Estimate:
    """The mean of successive block rates: two or more, each above 0.

    Successive blocks are correlated: n blocks with lag-1 correlation r are equivalent to n (1 - r) / (1 + r) independent blocks
    (an AR(1) process). An estimate of r from few blocks is too small by about (1 + 4 r) / n (Kendall 1954), which is added.
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


def rate_change(now: Sequence[float], kept: Sequence[Sequence[float]], live: bool = False) -> RateChange | None:
    """Throughput `now` compared with the `kept` runs, each as block rates; None while there are too few blocks.

    The noise within runs is Welch's, over blocks. The noise between runs is added: for one or two kept runs it is RUN_TO_RUN. From three kept
    runs on it is their spread combined with RUN_TO_RUN, which has the weight USUAL_RUNS degrees of freedom, because three runs can agree by
    chance (a moderated t, Smyth 2004). With `live`, the interval is valid at every moment of a running run.
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
        variance = max(between, within) + between / k  # the spread between runs contains the noise within them
    else:
        parts = [(within, new.worth - 1), *((one.error**2 / k**2, one.worth - 1) for one in old)]
        parts.append((RUN_TO_RUN**2 * (1 + 1 / k), math.inf))
        variance, degrees = sum(part for part, _ in parts), _welch(parts)
    middle, half = math.log(new.mean) - statistics.fmean(log_rates), student(degrees) * math.sqrt(variance)
    return RateChange(*(math.expm1(max(-20.0, min(20.0, value))) for value in (middle, middle - half, middle + half)))


def _welch(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances (Welch-Satterthwaite). Each variance comes with its degrees of freedom."""
    below = sum(part**2 / degrees for part, degrees in parts)
    return sum(part for part, _ in parts) ** 2 / below if below > 0 else math.inf


def rate_verdict(found: RateChange, excused: float = 0.0) -> BaselineVerdict:
    """`slower` or `faster` if the whole interval is beyond 2 %, `same` if the interval is within 5 %, otherwise `undecided`.

    `excused`: the additional share of time that contention took from one side (above 0: from this run). Contention alone may explain a
    difference of that size.
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
