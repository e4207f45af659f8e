"""Two runs side by side: what differs around them, then every metric."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuconsole.model.experiments.baseline import RateChange

ComparisonVerdict = Literal["better", "worse", "higher", "lower", "same", "undecided", "not judged"]


class Difference(msgspec.Struct, frozen=True):
    """A part of the environment, or a knob, that is not the same in both."""

    name: str
    before: str
    after: str


class MetricChange(msgspec.Struct, omit_defaults=True):
    """A metric in both runs. `change` is relative, with a 95 % interval; None where a single figure is all there is (`why_not`)."""

    metric: str
    unit: str
    before: float
    after: float
    verdict: ComparisonVerdict
    change: RateChange | None = None
    why_not: str = ""

    @property
    def relative(self) -> float | None:
        """(after - before) / before; None where that is nothing to divide by."""
        return (self.after - self.before) / self.before if self.before else None


class Comparison(msgspec.Struct, omit_defaults=True):
    """`before` and `after` name the runs; `environment` comes first, because it may explain all that follows."""

    before: str
    after: str
    environment: list[Difference] = []
    knobs: list[Difference] = []
    metrics: list[MetricChange] = []
    only_before: list[str] = []
    only_after: list[str] = []
