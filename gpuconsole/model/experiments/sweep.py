"""A sweep: throughput at several values of knobs, measured in turn."""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec

from gpuconsole.model.knobs.catalogue import Knobs


class SweepPoint(msgspec.Struct, omit_defaults=True):
    """One setting. `rates`: work per second of each repeat. `settled`: this point is proven not to be the best.

    `low` and `high`: the interval of the mean. The intervals of all points of a sweep hold together with 95 % probability, after every round.
    None for fewer than two repeats.
    """

    knobs: Knobs
    rates: list[float] = []
    settled: bool = False
    error: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.rates) if self.rates else None

    @property
    def std(self) -> float:
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0


class Sweep(msgspec.Struct, omit_defaults=True):
    """`base` holds the knobs that were not varied too. `points` have the order of the command line.

    Repeats are interleaved: each round measures all points, every second round backwards, so that drift affects all points alike.
    """

    scenario: str
    device: str
    unit: str
    base: Knobs
    points: list[SweepPoint]
    repeats: int
    clock: Literal["wall", "contention_free"] = "wall"
    elapsed_s: float = 0.0

    @property
    def varied(self) -> list[str]:
        """The names of the varied knobs, in the order of the command line."""
        return list(self.points[0].knobs) if self.points else []

    @property
    def best(self) -> SweepPoint | None:
        """The point with the highest mean; see `rivals` for whether it is proven."""
        return max((point for point in self.points if point.rates), key=lambda point: point.mean or 0.0, default=None)

    @property
    def rivals(self) -> list[SweepPoint]:
        """The other points that may be the best: their interval overlaps the interval of `best`, or one of the two intervals is missing."""
        best = self.best
        return [
            point
            for point in self.points
            if best is not None and point is not best and point.rates and (point.high is None or best.low is None or point.high >= best.low)
        ]
