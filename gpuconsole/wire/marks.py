"""Steps on their way from a worker, as they were marked. The console adds them up: a training thread has none of it in a cache and is slow at it."""

from __future__ import annotations

import itertools
from typing import Annotated

import msgspec

from gpuconsole.model.run import PHASES, Step


class MarkedStep(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One step: when it began, and of each mark the phase that ended there and when. All times in seconds, on CLOCK_MONOTONIC.

    `runq`: the training thread's run-queue seconds so far, at the start and at each mark; empty where they were not read.
    """

    index: int
    start: float
    ended: list[Annotated[int, msgspec.Meta(ge=0, lt=len(PHASES))]]
    times: list[float]
    runq: list[float]
    samples: int
    tokens: int
    loss: float | None
    arm: int
    kind: int

    def step(self) -> Step:
        """Its phases' shares of wall time and of run-queue delay, summed up."""
        return Step(
            self.index,
            self.times[-1],
            self.times[-1] - self.start,
            self.samples,
            self.tokens,
            _by_phase(self.ended, [self.start, *self.times]),
            _by_phase(self.ended, self.runq) if self.runq else None,
            self.loss,
            self.arm,
            self.kind,
        )


def _by_phase(ended: list[int], readings: list[float]) -> tuple[float, ...]:
    """How much a reading grew in each phase; `readings` begins with that at the start."""
    phases = [0.0] * len(PHASES)
    for phase, (before, after) in zip(ended, itertools.pairwise(readings), strict=True):
        phases[phase] += after - before
    return tuple(phases)
