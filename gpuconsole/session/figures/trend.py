"""Significant growth of a series: the Theil-Sen slope with its confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Z95 = 1.96
MOST_POINTS = 60
"""The slope uses every pair of points: 1770 pairs."""
LEAST_POINTS = 20
KEEPS_ON = 0.5
"""A leak has a constant slope. If the slope of the second half of the points is below this share of the first half's slope, the growth slows down."""


def steady_growth(times: Sequence[float], values: Sequence[float]) -> float:
    """The lower end of the 95 % interval of the slope per unit of time, if it is positive and the growth does not slow down; else 0.

    Raises ValueError for fewer than LEAST_POINTS points.
    """
    every = max(1, math.ceil(len(times) / MOST_POINTS))
    times, values = times[::-every][::-1], values[::-every][::-1]
    half = len(times) // 2
    if len(times) < LEAST_POINTS:
        raise ValueError(f"{len(times)} points are too few")
    early, late = (statistics.median(_slopes(t, v)) for t, v in ((times[:half], values[:half]), (times[half:], values[half:])))
    slopes = _slopes(times, values)
    n = len(times)
    spread = Z95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)  # of Kendall's statistic without ties; ties make it smaller
    low = slopes[max(0, math.floor((len(slopes) - spread) / 2))]
    return low if low > 0 and late >= KEEPS_ON * early else 0.0


def _slopes(times: Sequence[float], values: Sequence[float]) -> list[float]:
    """The slopes of all pairs of points, sorted."""
    return sorted(
        (values[j] - values[i]) / (times[j] - times[i]) for i in range(len(times)) for j in range(i + 1, len(times)) if times[j] > times[i]
    )
