"""Sparklines of block characters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

LEVELS = " ▁▂▃▄▅▆▇█"


def spark(values: Sequence[float | None], height: int = 1, high: float | None = None) -> list[str]:
    """`height` texts, top first, one column for each value, from 0 to `high` (None: the largest value).

    A column without a sample is empty. A sample of zero shows the lowest block, so that it differs from a missing sample.
    """
    present = [value for value in values if value is not None]
    top = high if high is not None else max(present, default=0.0)
    if not values:
        return [""] * height
    columns = [_column(_steps(value, top, height * 8), height) for value in values]
    return ["".join(cells) for cells in zip(*columns, strict=True)]


@lru_cache(4096)
def _column(steps: int, height: int) -> str:
    """A column of `height` cells, top first, filled to `steps` eighths of a cell."""
    return "".join(LEVELS[max(0, min(8, steps - 8 * level))] for level in range(height - 1, -1, -1))


def _steps(value: float | None, top: float, most: int) -> int:
    """The height of a column in eighths of a cell."""
    if value is None:
        return 0
    if top <= 0:
        return 1
    return max(1, min(most, round(value / top * most)))
