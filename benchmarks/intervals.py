"""Intervals of paired measurements."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median with its 95 % bootstrap interval."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]
