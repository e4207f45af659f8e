"""When is a difference proven? An interval that may be looked at after every pair of blocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from gpuconsole.model.experiments.trial import Method, Speedup, Verdict

ALPHA = 0.05
RHO_SQUARED = 0.88
"""Tightest near ten pairs: (-2 ln a + ln(-2 ln a) + 1) / 10 (Waudby-Smith et al., Time-uniform central limit theory)."""
MIN_PAIRS = 4
MINIMUM_EFFECT = math.log(1.02)
"""Less than 2 % is called no gain: an A/A run on a shared machine once excluded 1 by less than that."""
NORMAL_975 = 1.96
RUN_TO_RUN = 0.02
"""What whole runs of one and the same thing are taken to differ by (standard deviation), where there are not three to tell: as much as the
least difference that counts. Six runs beside equal load on a shared two-core VM differed by 2.7 %."""
BETWEEN: dict[Method, float] = {"live ABBA": 0.0, "two workers ABBA": math.sqrt(2) * RUN_TO_RUN}
"""What the two sides of a trial differ by anyway (standard deviation of the log ratio): those that are processes of their own by what two
processes do, in every pair alike."""
LEAST_BETWEEN_PROCESSES = math.expm1(NORMAL_975 * BETWEEN["two workers ABBA"] + MINIMUM_EFFECT)
"""Less than 8 % no trial with a process a side can prove."""
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


def confidence_sequence(values: list[float]) -> tuple[float, float, float]:
    """Mean of `values` with an asymptotic 95 % confidence sequence: valid however often one looks, and whenever one stops.

    mean +- s sqrt( 2 (n r^2 + 1) / (n^2 r^2) ln( sqrt(n r^2 + 1) / a ) ), widened by Student's t over the normal
    quantile, because the deviation is estimated from few pairs. Needs two values or more; raises ValueError.
    """
    n = len(values)
    if n < 2:
        raise ValueError("an interval needs at least two pairs")
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    half = deviation / math.sqrt(n) * always_valid(n) * student(n - 1) / NORMAL_975
    return mean, mean - half, mean + half


def student(degrees: float) -> float:
    """t(0.975): how many standard errors a 95 % interval reaches to either side; of the next smaller `degrees` in the table."""
    return NORMAL_975 if degrees >= 60 else _T_975[max(known for known in _T_975 if known <= max(1, degrees))]


def always_valid(n: float) -> float:
    """What takes the place of the normal quantile where one looks after every block, and `n` are in: of the sequence above."""
    scaled = n * RHO_SQUARED + 1
    return math.sqrt(2 * scaled / (n * RHO_SQUARED) * math.log(math.sqrt(scaled) / ALPHA))


def speedup(log_ratios: list[float], between: float = 0.0) -> Speedup | None:
    """The effect as a ratio of throughputs with its interval; None before there are enough pairs. `between`: see BETWEEN."""
    if len(log_ratios) < 2:
        return None
    mean, low, high = _widened(confidence_sequence(log_ratios), between)
    return Speedup(*(math.exp(min(20.0, max(-20.0, value))) for value in (mean, low, high)))


def resolution(null_log_ratios: Sequence[float], pairs: int, between: float = 0.0) -> float | None:
    """The smallest effect, as a ratio, that `pairs` pairs can tell from none; None before there are two null pairs.

    In the order A B, B A, A B every second block follows one of its own side. Their log ratios have the mean 0 and, the blocks being neighbours
    like those of a pair, the spread of one: an A/A test that costs nothing.
    """
    if len(null_log_ratios) < 2 or pairs < 1:
        return None
    return math.expm1(min(20.0, math.hypot(_null_half_width(null_log_ratios, pairs), NORMAL_975 * between)))


def _null_half_width(null_log_ratios: Sequence[float], pairs: int) -> float:
    spread = math.sqrt(statistics.fmean(value * value for value in null_log_ratios))
    return spread / math.sqrt(pairs) * always_valid(pairs) * student(len(null_log_ratios)) / NORMAL_975


def _widened(interval: tuple[float, float, float], between: float) -> tuple[float, float, float]:
    """No number of pairs takes off what the two sides differ by anyway."""
    mean, low, high = interval
    anyway = NORMAL_975 * between
    return mean, mean - math.hypot(mean - low, anyway), mean + math.hypot(high - mean, anyway)


def exhausted(log_ratios: list[float], null_log_ratios: Sequence[float], between: float) -> bool:
    """Whether most of the interval is what the two sides differ by anyway, so that more pairs would tell little more."""
    if len(log_ratios) < MIN_PAIRS:
        return False
    mean, _, high = confidence_sequence(log_ratios)
    by_nulls = _null_half_width(null_log_ratios, len(log_ratios)) if len(null_log_ratios) >= 2 else 0.0
    return max(high - mean, by_nulls) < NORMAL_975 * between / 2


def verdict(log_ratios: list[float], null_log_ratios: Sequence[float] = (), between: float = 0.0) -> Verdict | None:
    """win, no_gain or worse once the interval says so; None while it does not.

    Few pairs that agree by chance have too small a deviation: a win, or a loss, must also be larger than what the null pairs allow.
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
