"""What a change does to what is computed: held-out loss in a training job, and what costs too much is not kept."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from gpuconsole.experiments.blocks import BASELINE, CHANGED
from gpuconsole.experiments.trial import with_quality
from gpuconsole.model.experiments.trial import HeldOutLoss, Speedup, Trial
from gpuconsole.model.finding import Signal
from gpuconsole.wire.events import ProbeDone


class Sides:
    """A job whose loss falls by 0.01 between two looks, and with the change is `worse` higher."""

    method = "live ABBA"

    def __init__(self, worse: float) -> None:
        self.worse, self.arm, self.looks = worse, 0, [0]

    async def switch_to(self, arm: int) -> None:
        self.arm = arm

    def worker(self, arm: int) -> Any:
        return self

    async def probe(self, name: str) -> ProbeDone:
        self.looks.append(self.arm)
        value = 2.0 - 0.01 * len(self.looks) + (self.worse if self.arm == CHANGED else 0.0)
        return ProbeDone(0.0, 1, name, {"quality.held_out_loss": Signal(value, "", "test")}, None, 0.0)


def judged(worse: float, **changes: object) -> Trial:
    won = Trial("1", "1", changes or {"precision": "bf16"}, "done", Speedup(1.5, 1.4, 1.6), verdict="win")  # type: ignore[arg-type]
    return asyncio.run(with_quality(won, Sides(worse)))  # type: ignore[arg-type]


def test_the_loss_is_compared_with_looks_on_both_sides_so_that_training_on_does_not_count() -> None:
    trial = judged(0.0)
    assert trial.held_out_loss is not None
    assert trial.held_out_loss.before == pytest.approx(trial.held_out_loss.after)
    assert trial.worth_keeping


def test_a_win_that_costs_loss_is_not_kept() -> None:
    assert not judged(0.2).worth_keeping
    assert judged(0.02).worth_keeping
    assert HeldOutLoss(2.0, math.nan).too_high


def test_changes_that_compute_the_same_are_not_looked_at() -> None:
    assert judged(0.2, log_every=20).held_out_loss is None


def test_arms_are_those_of_blocks() -> None:
    sides = Sides(0.0)
    asyncio.run(with_quality(Trial("1", "1", {"precision": "bf16"}, "done"), sides))  # type: ignore[arg-type]
    assert sides.looks[1:] == [BASELINE, CHANGED, BASELINE]
