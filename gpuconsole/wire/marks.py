"""Steps in the form in which a worker sends them. The console adds up the phases, because this work is slow in a training thread with cold
caches."""

from __future__ import annotations

import itertools
from typing import Literal

from gpuconsole.agent.protocol import PHASES, MarkedStep
from gpuconsole.model.run import Step

NotFinite = Literal["nan", "inf", "-inf"]
"""A loss that is not finite: JSON has no number for it."""


def step_of(marked: MarkedStep) -> Step:
    """The step with the sums of wall time and run-queue delay of each phase. Raises IndexError or ValueError where the step has no marks, an unknown phase,
    different numbers of phases and times, or a loss that is no number."""
    if min(marked.ended, default=0) < 0:
        raise ValueError("a phase below 0")
    return Step(
        marked.index,
        marked.times[-1],
        marked.times[-1] - marked.start,
        marked.samples,
        marked.tokens,
        _by_phase(marked.ended, [marked.start, *marked.times]),
        _by_phase(marked.ended, marked.runq) if marked.runq else None,
        None if marked.loss is None else float(marked.loss),
        marked.arm,
        marked.kind,
    )


def _by_phase(ended: list[int], readings: list[float]) -> tuple[float, ...]:
    """The increase of a reading in each phase. `readings` begins with the reading at the start of the step."""
    phases = [0.0] * len(PHASES)
    for phase, (before, after) in zip(ended, itertools.pairwise(readings), strict=True):
        phases[phase] += after - before
    return tuple(phases)
