"""The time axis of a chart on the main screen: columns of equal time, bound to the clock, so that a past column never moves or changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpuconsole.report import facts
from gpuconsole.session.api import View

History = Callable[[str, int, float], list[float | None]]
"""A function that returns the recent means of a series (key) in so many columns over so many seconds; None: no sample in that time."""
SECONDS = (
    0.1,
    0.125,
    0.15,
    0.2,
    0.25,
    0.3,
    0.4,
    0.5,
    0.6,
    0.8,
    1.0,
    1.25,
    1.5,
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
    6.0,
    8.0,
    10.0,
    12.0,
    15.0,
    20.0,
    25.0,
    30.0,
    40.0,
    50.0,
    60.0,
)
"""Widths of a column. Neighbours differ by at most a third: at most a quarter of a chart is still empty when its columns become wider."""
HOLD_S = 1.5
"""The usual source reports once a second."""
HOLD_STEPS = 3.0
"""Throughput is known once a step."""


class Window(NamedTuple):
    """`filled` of `columns` columns have a time that is not in the future. `first` is the number of the first column on the clock."""

    per_column_s: float
    first: int
    filled: int
    columns: int

    @property
    def begin_s(self) -> float:
        return self.first * self.per_column_s

    def column(self, t: float) -> int:
        """The column of a time; it may be outside of the window."""
        return int(t / self.per_column_s) - self.first

    def values(self, key: str, history: History, hold_s: float) -> list[float | None]:
        """The series in all columns; None in columns of the future. A sample is shown for up to `hold_s` where no newer sample is known."""
        found = history(key, self.filled, self.filled * self.per_column_s) if self.filled > 0 else []
        held, age = None, 0
        for n, value in enumerate(found):
            held, age = (value, 0) if value is not None else (held, age + 1)
            if value is None and age * self.per_column_s <= hold_s:
                found[n] = held
        return found + [None] * (self.columns - self.filled)


def window(begin_s: float, now_s: float, columns: int, widest_s: float = float("inf")) -> Window:
    """The time from `begin_s` to `now_s` in `columns` columns. Where these would be wider than `widest_s`: the newest part of that time."""
    columns = max(1, columns)
    per_column_s = _column_s(max(0.0, now_s - begin_s), columns, widest_s)
    last = int(now_s / per_column_s)
    first = max(int(begin_s / per_column_s), last - columns + 1)
    return Window(per_column_s, first, last - first + 1, columns)


def hold_s(view: View) -> float:
    """The time for which a throughput is shown: the next is known after some steps."""
    usual_s, _ = facts.percentiles(view)
    return HOLD_S if usual_s is None or (view.run is not None and view.run.serves) else max(HOLD_S, HOLD_STEPS * usual_s)


def _column_s(elapsed_s: float, columns: int, widest_s: float) -> float:
    need = elapsed_s / max(1, columns - 1)  # the first and the last column may be parts
    found = next((one for one in SECONDS if one >= need), SECONDS[-1])
    while found < need:
        found *= 1.25
    return min(found, widest_s)
