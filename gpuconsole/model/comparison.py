"""The comparison of two runs: their environments, their knobs, and every metric."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuconsole.model.baseline import RateChange

ComparisonVerdict = Literal["better", "worse", "higher", "lower", "undecided", "not judged"]


class Difference(msgspec.Struct, frozen=True):
    """A part of the environment, or a knob, that differs between the two runs."""

    name: str
    before: str
    after: str


class MetricChange(msgspec.Struct, omit_defaults=True):
    """A metric in both runs. `change` is relative, with a 95 % interval; None where there is no interval, for the reason `why_not`."""

    metric: str
    unit: str
    before: float
    after: float
    verdict: ComparisonVerdict
    change: RateChange | None = None
    why_not: str = ""

    @property
    def relative(self) -> float | None:
        """(after - before) / before; None where `before` is 0."""
        return (self.after - self.before) / self.before if self.before else None


class Comparison(msgspec.Struct, omit_defaults=True):
    """`before` and `after` are the names of the runs. `doubts`: a line for each run whose figures are degraded or invalid, and a line about contention.
    `cannot_tell`: what the result files of other clients do not hold. `environment` comes
    before the metrics, because it may explain their differences. `same_run`: both are one run. `unlike`: differences of program, device and
    versions; with any of them, a ratio of the two runs is not the speedup of a change. `other_steps`: differences of knobs, such as the batch
    size, that give a step other work; with any of them, the ratio of two step times is not a speedup. A knob that a run does not have reads
    `n/a`."""

    before: str
    after: str
    doubts: list[str] = []
    environment: list[Difference] = []
    knobs: list[Difference] = []
    same_run: bool = False
    unlike: list[Difference] = []
    other_steps: list[Difference] = []
    metrics: list[MetricChange] = []
    only_before: list[str] = []
    only_after: list[str] = []
    cannot_tell: list[str] = []
