"""What a change does to what is computed: held-out loss in a training job, and what costs too much is not kept."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest

from gpuconsole.experiments.statistics import BASELINE, CHANGED
from gpuconsole.experiments.trial import with_quality, with_training_loss
from gpuconsole.model.experiments import HeldOutLoss, Speedup, Trial
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


@pytest.mark.parametrize(("worse", "keeps"), [(0.0, True), (0.05, False)])
def test_the_loss_of_a_job_is_that_of_its_own_steps(worse: float, keeps: bool) -> None:
    """The loss falls while the trial runs, and the noise of single batches is larger than the progress."""
    noise = random.Random(1)

    def block(number: int, change: float) -> list[float]:
        return [(3.0 - 0.01 * number) * (1 + change) + noise.gauss(0, 0.1) for _ in range(50)]

    pairs = [(block(2 * n + n % 2, 0.0), block(2 * n + 1 - n % 2, worse)) for n in range(8)]
    trial = with_training_loss(Trial("1", "1", {"precision": "bf16"}, "done", verdict="win"), pairs)
    assert trial.held_out_loss is not None and trial.held_out_loss.training
    assert trial.held_out_loss.cost_ratio == pytest.approx(worse, abs=0.01)
    assert trial.worth_keeping is keeps


def test_without_a_loss_of_the_job_a_change_of_numerics_is_not_kept() -> None:
    trial = with_training_loss(Trial("1", "1", {"precision": "bf16"}, "done", verdict="win"), [([], [])] * 4)
    assert not trial.worth_keeping and trial.error == "no loss of the job was seen"
