"""Distributions from the histograms of a model server: the mean is exact, and a percentile is known to the width of its bucket."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from gpuconsole.model.run import Distribution

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def of_histogram(name: str, gained: Mapping[str, float], buckets: Mapping[float, float]) -> Distribution | None:
    """The distribution of the values that came between two readings of a histogram; None where none came, or where the server reports no buckets.

    `gained`: the increase of `NAME_sum` and `NAME_count`. `buckets`: the increase of the values up to each bound.
    """
    count, total = gained.get(f"{name}_count", 0.0), gained.get(f"{name}_sum", 0.0)
    mean, bounds = total / count if count > 0 else 0.0, sorted(buckets)
    if count <= 0 or not bounds:
        return None
    found = {label: quantile(share, count, buckets, bounds) for label, share in PERCENTILES.items()}
    values = {label: value for label, (value, _) in found.items()}
    within = {label: bucket for label, (_, bucket) in found.items()}
    return Distribution(mean, _spread(mean, count, buckets, bounds), round(count), **values, within=within)


def quantile(share: float, count: float, buckets: Mapping[float, float], bounds: list[float]) -> tuple[float, tuple[float, float | None]]:
    """The value below which `share` of the values are, evenly spread within its bucket, and the bounds of that bucket. In the last bucket, which has no
    upper bound: the lower bound."""
    wanted, lower, before = share * count, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted and buckets[bound] > before:
            return lower + (bound - lower) * (wanted - before) / (buckets[bound] - before), (lower, bound)
        lower, before = bound, buckets[bound]
    return lower, (lower, None)


def _spread(mean: float, count: float, buckets: Mapping[float, float], bounds: list[float]) -> float:
    """The standard deviation, with the values of each bucket in its middle."""
    pairs = itertools.pairwise([0.0, *bounds])
    inside = [(max(0.0, buckets[upper] - buckets.get(lower, 0.0)), (lower + upper) / 2) for lower, upper in pairs]
    inside.append((max(0.0, count - buckets[bounds[-1]]), bounds[-1]))
    return math.sqrt(sum(number * (middle - mean) ** 2 for number, middle in inside) / count)
