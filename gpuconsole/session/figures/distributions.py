"""Statistics of values: percentiles of a list and of an unlimited number of values, distributions
from the histograms of a model server (the mean is exact, and a percentile is known to the width of
its bucket), and significant growth of a series.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpuconsole.model.run import Distribution

# --- percentiles ----------------------------------------------------------------------------------

GROWTH = math.log(1.01)
"""Each bucket is 1 % wider than the bucket before, so its middle is within 0.5 % of every value in
it (as in HdrHistogram and DDSketch)."""
SHARES = (0.50, 0.90, 0.95, 0.99)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of `ordered` lies, nearest rank."""
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1 if share > 0 else 0)]


def distribution(values: Iterable[float]) -> Distribution | None:
    """Mean, sample standard deviation and percentiles of the values that are numbers (no NaN, not
    infinite); None without such values."""
    ordered = sorted(filter(math.isfinite, values))
    if not ordered:
        return None
    std = statistics.stdev(ordered) if len(ordered) > 1 else 0.0
    p50, p90, p95, p99 = (percentile(ordered, share) for share in (0.50, 0.90, 0.95, 0.99))
    return Distribution(statistics.fmean(ordered), std, len(ordered), p50, p90, p95, p99)


def weighted(pairs: Iterable[tuple[float, float]]) -> Distribution | None:
    """Mean, standard deviation and exact percentiles (nearest rank) of (value, weight) pairs whose
    values are numbers; None without such pairs."""
    ordered = sorted(pair for pair in pairs if pair[1] > 0 and math.isfinite(pair[0]))
    return _distribution(ordered) if ordered else None


class Latencies:
    """Counts of values by size. Memory does not grow with the number of values."""

    def __init__(self) -> None:
        self._buckets: dict[int, float] = {}
        self._zeros = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add a value in any unit. A value of 0 or less counts as 0."""
        if value <= 0:
            self._zeros += weight
        else:
            bucket = math.floor(math.log(value) / GROWTH)
            self._buckets[bucket] = self._buckets.get(bucket, 0.0) + weight

    def distribution(self) -> Distribution | None:
        """The distribution within 0.5 %; None without values."""
        pairs = [
            (math.exp((bucket + 0.5) * GROWTH), weight)
            for bucket, weight in sorted(self._buckets.items())
        ]
        pairs = [(0.0, self._zeros), *pairs] if self._zeros else pairs
        return _distribution(pairs) if pairs else None


def _distribution(ordered: Sequence[tuple[float, float]]) -> Distribution:
    total = sum(weight for _, weight in ordered)
    mean = sum(value * weight for value, weight in ordered) / total
    spread = sum(weight * (value - mean) ** 2 for value, weight in ordered)
    std = math.sqrt(spread / (total - 1)) if total > 1 else 0.0
    percentiles, seen, shares = [], 0.0, list(SHARES)
    for value, weight in ordered:
        seen += weight
        while shares and seen >= shares[0] * total - 1e-9:
            percentiles.append(value)
            shares.pop(0)
    p50, p90, p95, p99 = percentiles + [ordered[-1][0]] * len(shares)
    return Distribution(mean, std, round(total), p50, p90, p95, p99)


# --- growth ---------------------------------------------------------------------------------------

Z95 = 1.96
MAX_POINTS = 60
"""The slope uses every pair of points: 1770 pairs."""
MIN_POINTS = 20
KEEPS_ON = 0.5
"""A leak has a constant slope. If the slope of the second half of the points is below this share of
the first half's slope, the growth slows down."""


class Slope(NamedTuple):
    """A slope by Theil and Sen, the median over all pairs of points, with its 95 % interval by
    Kendall's statistic (Sen, 1968)."""

    low: float
    middle: float
    high: float


def slope_of(times: Sequence[float], values: Sequence[float], least: int = MIN_POINTS) -> Slope:
    """The slope of at most MAX_POINTS of the points. Raises ValueError for fewer than `least`
    points."""
    if len(times) < least:
        raise ValueError(f"{len(times)} points are too few")
    times, values = _thinned(times), _thinned(values)
    if min(values) == max(values):  # for example a phase that no step has
        return Slope(0.0, 0.0, 0.0)
    slopes = _slopes(times, values)
    n = len(times)
    # of Kendall's statistic without ties; ties make it smaller
    spread = Z95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    at = max(0, math.floor((len(slopes) - spread) / 2))
    return Slope(slopes[at], statistics.median(slopes), slopes[len(slopes) - 1 - at])


def steady_growth(
    times: Sequence[float], values: Sequence[float], least: int = MIN_POINTS
) -> float:
    """Return the lower end of the 95 % interval of the slope per unit of time. Return 0 where that
    is not positive, or where the growth slows down.

    Raises ValueError for fewer than `least` points.
    """
    low = slope_of(times, values, least).low
    times, values = _thinned(times), _thinned(values)
    half = len(times) // 2
    early, late = (
        median_slope(t, v)
        for t, v in ((times[:half], values[:half]), (times[half:], values[half:]))
    )
    return low if low > 0 and late >= KEEPS_ON * early else 0.0


def median_slope(times: Sequence[float], values: Sequence[float]) -> float:
    """The slope by Theil and Sen alone."""
    return statistics.median(_slopes(_thinned(times), _thinned(values)))


def _thinned(points: Sequence[float]) -> Sequence[float]:
    """At most MAX_POINTS of the points at equal distances, with the last one."""
    return points[:: -max(1, math.ceil(len(points) / MAX_POINTS))][::-1]


def _slopes(times: Sequence[float], values: Sequence[float]) -> list[float]:
    """The slopes of all pairs of points, sorted."""
    points = list(zip(times, values, strict=True))
    return sorted(
        (value - v) / (time - t)
        for at, (t, v) in enumerate(points)
        for time, value in points[at + 1 :]
        if time > t
    )


# --- histograms of a model server -----------------------------------------------------------------

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def of_histogram(
    name: str, gained: Mapping[str, float], buckets: Mapping[float, float]
) -> Distribution | None:
    """The distribution of the values that came between two readings of a histogram; None where none
    came, or where the server reports no buckets.

    `gained`: the increase of `NAME_sum` and `NAME_count`. `buckets`: the increase of the values up
    to each bound.
    """
    count, total = gained.get(f"{name}_count", 0.0), gained.get(f"{name}_sum", 0.0)
    mean, bounds = total / count if count > 0 else 0.0, sorted(buckets)
    if count <= 0 or not bounds:
        return None
    found = {label: quantile(share, count, buckets, bounds) for label, share in PERCENTILES.items()}
    values = {label: value for label, (value, _) in found.items()}
    within = {label: bucket for label, (_, bucket) in found.items()}
    return Distribution(
        mean, _spread(mean, count, buckets, bounds), round(count), **values, within=within
    )


def quantile(
    share: float, count: float, buckets: Mapping[float, float], bounds: list[float]
) -> tuple[float, tuple[float, float | None]]:
    """The value below which `share` of the values are, evenly spread within its bucket, and the
    bounds of that bucket. In the last bucket, which has no upper bound: the lower bound."""
    wanted, lower, before = share * count, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted and buckets[bound] > before:
            return lower + (bound - lower) * (wanted - before) / (buckets[bound] - before), (
                lower,
                bound,
            )
        lower, before = bound, buckets[bound]
    return lower, (lower, None)


def _spread(
    mean: float, count: float, buckets: Mapping[float, float], bounds: list[float]
) -> float:
    """The standard deviation, with the values of each bucket in its middle."""
    pairs = itertools.pairwise([0.0, *bounds])
    inside = [
        (max(0.0, buckets[upper] - buckets.get(lower, 0.0)), (lower + upper) / 2)
        for lower, upper in pairs
    ]
    inside.append((max(0.0, count - buckets[bounds[-1]]), bounds[-1]))
    return math.sqrt(sum(number * (middle - mean) ** 2 for number, middle in inside) / count)
