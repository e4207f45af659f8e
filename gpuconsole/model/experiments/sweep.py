"""Throughput over the values of knobs, measured in turn."""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec

from gpuconsole.model.knobs.catalogue import Knobs


class SweepPoint(msgspec.Struct, omit_defaults=True):
    """One setting. `rates`: work per second of each repeat. `settled`: given up early, since it was clearly not the best."""

    knobs: Knobs
    rates: list[float] = []
    settled: bool = False
    error: str = ""

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.rates) if self.rates else None

    @property
    def std(self) -> float:
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0


class Sweep(msgspec.Struct, omit_defaults=True):
    """`base` holds the knobs that were not varied too. `points` stand in the order given; repeats were made in interleaved order, each round
    of all points backwards after one forwards, so that drift falls on all alike."""

    scenario: str
    device: str
    unit: str
    base: Knobs
    points: list[SweepPoint]
    repeats: int
    clock: Literal["wall", "contention_free"] = "wall"
    elapsed_s: float = 0.0

    @property
    def best(self) -> SweepPoint | None:
        return max((point for point in self.points if point.rates), key=lambda point: point.mean or 0.0, default=None)
