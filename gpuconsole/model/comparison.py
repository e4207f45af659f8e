"""Comparisons of the rates of runs: a run with its baseline, two runs, and the decision of a gate
in CI."""

from __future__ import annotations

from typing import Literal

import msgspec

BaselineVerdict = Literal["faster", "same", "slower", "undecided"]
"""`same` is in files of earlier versions only: one run cannot show that it is the same within a few
percent."""


class RateChange(msgspec.Struct, frozen=True):
    """Throughput divided by the throughput of the baseline, minus 1, with its 95 % interval: -0.083
    is 8.3 % slower."""

    estimate: float
    low: float
    high: float


class BaselineComparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """The comparison of a run with the kept runs of the same work on the same hardware and
    software, or the reason why there is no comparison (`verdict` None).

    `words`: the result as a sentence; `short`: the result for a title. `rate`: the mean rate of the
    baseline's `runs` on the wall clock, in `unit`; `since` and `until`: the dates of the oldest and
    the newest run. `live`: the run is still going on, and the interval is valid at every moment.
    """

    key: str
    words: str
    short: str = ""
    verdict: BaselineVerdict | None = None
    change: RateChange | None = None
    rate: float | None = None
    unit: str = ""
    runs: int = 0
    since: str = ""
    until: str = ""
    clock: Literal["wall", "contention_free"] = "wall"
    blocks: int = 0
    live: bool = False


ComparisonVerdict = Literal["better", "worse", "higher", "lower", "undecided", "not judged"]


class Difference(msgspec.Struct, frozen=True):
    """A part of the environment, or a knob, that differs between the two runs."""

    name: str
    before: str
    after: str


class MetricChange(msgspec.Struct, omit_defaults=True):
    """A metric in both runs. `change` is relative, with a 95 % interval; None where there is no
    interval, for the reason `why_not`."""

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
    """`before` and `after` are the names of the runs. `doubts`: a line for each run whose figures
    are degraded or invalid, and a line about contention. `cannot_tell`: what the result files of
    other clients do not hold. `environment` comes before the metrics, because it may explain their
    differences. `same_run`: both are one run. `unlike`: differences of program, device and
    versions; with any of them, a ratio of the two runs is not the speedup of a change.
    `other_steps`: differences of knobs, such as the batch size, that give a step other work; with
    any of them, the ratio of two step times is not a speedup. A knob that a run does not have reads
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


GateVerdict = Literal["no regression", "regression", "undecided"]


class GateRatio(msgspec.Struct, frozen=True):
    """Throughput of the new runs over that of the base runs, with its 95 % interval, and what the
    interval is made of.

    `in_turn`: the two sides were measured in turn. `occasions`: at how many separate times each
    side was measured. `spread`: the standard deviation between two equal runs as a share of the
    rate (of two occasions, where not in turn); `assumed`: whether an assumed spread is part of it.
    """

    estimate: float
    low: float
    high: float
    in_turn: bool
    occasions: tuple[int, int]
    spread: float
    assumed: bool

    @property
    def change(self) -> RateChange:
        """The ratio as a change of the rate."""
        return RateChange(self.estimate - 1, self.low - 1, self.high - 1)


class GateFigure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A figure of both sides, as the mean over the runs of a side; None where a side does not have
    it."""

    name: str
    unit: str
    base: float | None
    new: float | None

    @property
    def relative(self) -> float | None:
        """(new - base) / base; None where it is not known."""
        return (self.new - self.base) / self.base if self.base and self.new is not None else None


class GateFinding(msgspec.Struct, frozen=True):
    """A finding that most runs of only one side have: in how many runs of each side it fires."""

    rule: str
    title: str
    base: int
    new: int


class Gate(msgspec.Struct, omit_defaults=True):
    """The decision about `new_runs` against `base_runs`.

    `needed`: how many runs of each side, measured in turn, are needed for a decision; 0 where there
    is a decision, or where more runs do not help. `why`: why there is no decision, in one sentence.
    `clock`: the rates are on the wall clock, or without the training thread's waits for other
    programs.
    `judged`: what the ratio is of: the throughput, or in an open loop the speed 1 / mean E2E,
    because there the client sets the throughput. `cannot_tell`: what the result files of other
    clients do not hold. `differences`: settings and versions that differ between the sides.
    """

    verdict: GateVerdict
    ratio: GateRatio
    fail_below: float
    base_runs: int
    new_runs: int
    scenario: str
    device: str
    clock: Literal["wall", "contention_free"]
    needed: int = 0
    why: str = ""
    labels: list[str] = []
    figures: list[GateFigure] = []
    findings: list[GateFinding] = []
    differences: list[Difference] = []
    judged: Literal["throughput", "e2e"] = "throughput"
    cannot_tell: list[str] = []
