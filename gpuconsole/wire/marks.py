"""Steps in the form in which a worker sends them. The console adds up the phases, because this work is slow in a training thread with cold
caches."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

import msgspec

from gpuconsole.model.run import PHASES, Step

NotFinite = Literal["nan", "inf", "-inf"]
"""A loss that is not finite: JSON has no number for it."""


class MarkedStep(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One step: its start, and for each mark the phase that ended there and its time. All times are seconds on CLOCK_MONOTONIC.

    `runq`: run-queue seconds of the training thread so far, at the start and at each mark; empty where they were not read.
    """

    index: int
    start: float
    ended: list[Annotated[int, msgspec.Meta(ge=0, lt=len(PHASES))]]
    times: list[float]
    runq: list[float]
    samples: int
    tokens: int
    loss: float | NotFinite | None
    arm: int
    kind: int

    def step(self) -> Step:
        """The step with the sums of wall time and run-queue delay of each phase."""
        return Step(
            self.index,
            self.times[-1],
            self.times[-1] - self.start,
            self.samples,
            self.tokens,
            _by_phase(self.ended, [self.start, *self.times]),
            _by_phase(self.ended, self.runq) if self.runq else None,
            None if self.loss is None else float(self.loss),
            self.arm,
            self.kind,
        )


def _by_phase(ended: list[int], readings: list[float]) -> tuple[float, ...]:
    """The increase of a reading in each phase. `readings` begins with the reading at the start of the step."""
    phases = [0.0] * len(PHASES)
    for phase, (before, after) in zip(ended, itertools.pairwise(readings), strict=True):
        phases[phase] += after - before
    return tuple(phases)
