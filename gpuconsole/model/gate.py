"""The decision of a gate in CI: the throughput of new runs over that of base runs, against a limit."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuconsole.model.baseline import RateChange
from gpuconsole.model.comparison import Difference

GateVerdict = Literal["no regression", "regression", "undecided"]


class GateRatio(msgspec.Struct, frozen=True):
    """Throughput of the new runs over that of the base runs, with its 95 % interval, and what the interval is made of.

    `in_turn`: the two sides were measured in turn. `occasions`: at how many separate times each side was measured. `spread`: the standard deviation
    between two equal runs as a share of the rate (of two occasions, where not in turn); `assumed`: whether an assumed spread is part of it.
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
    """A figure of both sides, as the mean over the runs of a side; None where a side does not have it."""

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

    `needed`: how many runs of each side, measured in turn, are needed for a decision; 0 where there is a decision, or where more runs do not help.
    `why`: why there is no decision, in one sentence. `clock`: the rates are on the wall clock, or without the run-queue delay of the training thread.
    `judged`: what the ratio is of: the throughput, or in an open loop the speed 1 / mean E2E, because there the client sets the throughput.
    `cannot_tell`: what the result files of other clients do not hold. `differences`: settings and versions that differ between the sides.
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
