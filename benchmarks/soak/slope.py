"""The growth rate of a value: a line through block means, with its 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

BLOCK_S = 30.0
Z_975 = 1.959964


class Slope(NamedTuple):
    """Per second, with a 95 % interval; `blocks` means of `BLOCK_S` each went into it."""

    estimate: float
    low: float
    high: float
    blocks: int


def slope(times: Sequence[float], values: Sequence[float]) -> Slope | None:
    """Least squares. Readings that are seconds apart are correlated, so blocks are averaged first;
    None if fewer than four blocks are left."""
    blocks: dict[int, list[tuple[float, float]]] = {}
    for t, value in zip(times, values, strict=True):
        blocks.setdefault(int(t / BLOCK_S), []).append((t, value))
    x = [statistics.fmean(t for t, _ in block) for block in blocks.values()]
    y = [statistics.fmean(value for _, value in block) for block in blocks.values()]
    if len(x) < 4:
        return None
    line = statistics.linear_regression(x, y)
    rest = sum((b - line.slope * a - line.intercept) ** 2 for a, b in zip(x, y, strict=True))
    middle, degrees = statistics.fmean(x), len(x) - 2
    error = math.sqrt(rest / degrees / sum((a - middle) ** 2 for a in x))
    half = error * student_975(degrees)
    return Slope(line.slope, line.slope - half, line.slope + half, len(x))


def student_975(degrees: int) -> float:
    """Student's t(0.975) from the normal quantile (Fisher and Cornish's expansion; 1 % off at two
    degrees of freedom, less above)."""
    z = Z_975
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
