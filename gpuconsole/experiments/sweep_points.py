"""Which points a sweep has, in which order they are measured, and when one is clearly not the best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from gpuconsole.experiments.statistics import student
from gpuconsole.model.experiments.sweep import SweepPoint
from gpuconsole.model.knobs.catalogue import Knobs, Value

MIN_REPEATS = 4
WORSE_BY = 0.95
"""A point whose interval ends below 95 % of where the best one's begins is settled."""


def points(vary: dict[str, list[Value]], base: Knobs, grid: bool) -> list[Knobs]:
    """One factor at a time around `base`, which comes first; or with `grid` every combination. Each once."""
    if grid:
        return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
    found: list[Knobs] = [{name: base[name] for name in vary}]
    found += [{**found[0], name: value} for name, values in vary.items() for value in values if value != base[name]]
    return found if any(base[name] in values for name, values in vary.items()) else found[1:]


def rounds(count: int, repeats: int) -> Iterator[list[int]]:
    """Indices of the points, round after round: forwards, backwards, forwards, ..."""
    for number in range(repeats):
        yield list(range(count)) if number % 2 == 0 else list(reversed(range(count)))


def interval(rates: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean; None for fewer than two repeats."""
    n = len(rates)
    if n < 2:
        return None
    mean = sum(rates) / n
    half = student(n - 1) * math.sqrt(sum((rate - mean) ** 2 for rate in rates) / (n - 1) / n)
    return mean - half, mean + half


def settle(found: Sequence[SweepPoint]) -> None:
    """Mark the points that are clearly not the best."""
    known = [(one, interval(one.rates)) for one in found if len(one.rates) >= MIN_REPEATS and not one.settled]
    if not known:
        return
    best = max(bounds[0] for _, bounds in known if bounds is not None)
    for one, bounds in known:
        one.settled = bounds is not None and bounds[1] < WORSE_BY * best
