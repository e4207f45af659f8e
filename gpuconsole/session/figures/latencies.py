"""Percentiles of many latencies: exact for a list, within half a percent for an unlimited number of values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gpuconsole.model.run import Distribution

GROWTH = math.log(1.01)
"""Each bucket is 1 % wider than the bucket before, so its middle is within 0.5 % of every value in it (as in HdrHistogram and DDSketch)."""
SHARES = (0.50, 0.90, 0.95, 0.99)


def weighted(pairs: Iterable[tuple[float, float]]) -> Distribution | None:
    """Mean, standard deviation and exact percentiles (nearest rank) of (value, weight) pairs; None without pairs."""
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
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
        pairs = [(math.exp((bucket + 0.5) * GROWTH), weight) for bucket, weight in sorted(self._buckets.items())]
        pairs = [(0.0, self._zeros), *pairs] if self._zeros else pairs
        return _distribution(pairs) if pairs else None


def _distribution(ordered: Sequence[tuple[float, float]]) -> Distribution:
    total = sum(weight for _, weight in ordered)
    mean = sum(value * weight for value, weight in ordered) / total
    spread = sum(weight * (value - mean) ** 2 for value, weight in ordered)
    std = math.sqrt(spread / (total - 1)) if total > 1 else 0.0
    found, seen, wanted = [], 0.0, list(SHARES)
    for value, weight in ordered:
        seen += weight
        while wanted and seen >= wanted[0] * total - 1e-9:
            found.append(value)
            wanted.pop(0)
    p50, p90, p95, p99 = found + [ordered[-1][0]] * len(wanted)
    return Distribution(mean, std, round(total), p50, p90, p95, p99)
