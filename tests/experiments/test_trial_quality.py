"""What a change does to what is computed: held-out loss in a training job, and what costs too much
is not kept."""

from __future__ import annotations

import asyncio
import math
import random
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from gpuconsole.experiments.statistics import BASELINE, CHANGED, MIN_PAIRS
from gpuconsole.experiments.trial import (
    FiniteLoss,
    LossNotFinite,
    run_trial,
    with_quality,
    with_training_loss,
)
from gpuconsole.model.experiments import HeldOutLoss, Speedup, Trial
from gpuconsole.model.finding import Signal
from gpuconsole.model.run import PHASES, Run, Step
from gpuconsole.report.experiments import trial_report, verdict
from gpuconsole.report.parts import printed
from gpuconsole.wire.events import ProbeDone
from tests.experiments.fake_job import FakeJob


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
        return ProbeDone(
            0.0, 1, name, {"quality.held_out_loss": Signal(value, "", "test")}, None, 0.0
        )


def judged(worse: float, **changes: object) -> Trial:
    won = Trial(
        "1", "1", changes or {"precision": "bf16"}, "done", Speedup(1.5, 1.4, 1.6), verdict="win"
    )  # type: ignore[arg-type]
    return asyncio.run(with_quality(won, Sides(worse)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "worse", "too_high"),
    [
        (-2.0, -1.0, 0.5, True),
        (-2.0, -2.2, -0.1, False),
        (0.0, 0.0, None, False),
        (0.0, 0.5, None, True),
    ],
)
def test_a_loss_may_be_negative_or_zero(
    before: float, after: float, worse: float | None, too_high: bool
) -> None:
    """A contrastive loss or a bound of a likelihood is often negative. A loss of 0 ended the
    console by a division."""
    loss = HeldOutLoss(before, after)
    assert (
        loss.cost_ratio == (None if worse is None else pytest.approx(worse))
        and loss.too_high == too_high
    )
    trial = Trial(
        "1",
        "1",
        {"precision": "bf16"},
        "done",
        Speedup(1.2, 1.1, 1.3),
        None,
        8,
        verdict="win",
        held_out_loss=loss,
    )
    assert printed(trial_report(trial, None))


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
    assert sides.looks[1:] == [BASELINE, CHANGED, BASELINE, CHANGED, BASELINE]


@pytest.mark.parametrize(("worse", "keeps"), [(0.0, True), (0.05, False)])
def test_the_loss_of_a_job_is_that_of_its_own_steps(worse: float, keeps: bool) -> None:
    """The loss falls while the trial runs, and the noise of single batches is larger than the
    progress."""
    noise = random.Random(1)

    def block(number: int, change: float) -> list[float]:
        return [(3.0 - 0.01 * number) * (1 + change) + noise.gauss(0, 0.1) for _ in range(50)]

    pairs = [(block(2 * n + n % 2, 0.0), block(2 * n + 1 - n % 2, worse)) for n in range(8)]
    trial = with_training_loss(Trial("1", "1", {"precision": "bf16"}, "done", verdict="win"), pairs)
    assert trial.held_out_loss is not None and trial.held_out_loss.training
    assert trial.held_out_loss.cost_ratio == pytest.approx(worse, abs=0.01)
    assert trial.worth_keeping is keeps


def test_without_a_loss_of_the_job_a_change_of_numerics_is_not_kept() -> None:
    trial = with_training_loss(
        Trial("1", "1", {"precision": "bf16"}, "done", verdict="win"), [([], [])] * 4
    )
    assert not trial.worth_keeping and trial.error == "no loss of the job was seen"


WON = Trial("1", "1", {"precision": "bf16"}, "done", verdict="win")


@pytest.mark.parametrize(
    "pairs",
    [
        [([2.0] * 8, [2.0] * 8), ([2.0, 2.01], [2.0, 2.02]), ([2.0] * 3, []), ([], [])],
        [([2.0] * 4, [2.0, math.nan, 2.0, math.nan])] * 4,
        [([2.0] * 4, [2.0] * 4)] * 3 + [([2.0] * 4, [2.0, math.inf])],
    ],
    ids=["a side loses its losses", "not a number", "infinite"],
)
def test_a_change_that_destroys_the_loss_is_worse(
    pairs: list[tuple[list[float], list[float]]],
) -> None:
    with pytest.raises(LossNotFinite):
        watch_losses(FiniteLoss(numerics=True), pairs)


class LogsRarely(FakeJob):
    """A job that logs its loss every 23 steps, and is faster with the change. A block has 12 to 54
    steps."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    async def next_steps(self) -> None:
        self._count += 1
        seconds = 0.02 if self.arm == CHANGED else 0.03
        loss = None if self._count % 23 else 2.0
        phases = (seconds, *[0.0] * (len(PHASES) - 1))
        self.trial_steps.append(Step(0, 0.0, seconds, 8, 0, phases, phases, loss, self.arm))


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_that_is_logged_rarely_is_not_lost(seed: int) -> None:
    run = Run("1", "train.py", "job", {"precision": "fp32"}, "gpu:0")
    before = Trial("1", "1", {"precision": "bf16"}, order_seed=seed)
    trial = asyncio.run(run_trial(before, run, LogsRarely(), lambda trial: None))  # type: ignore[arg-type]
    assert (trial.verdict, trial.reason) == ("win", "")


def test_a_noisy_loss_hides_no_rise() -> None:
    """No proof of harm is no proof of its absence."""
    assert HeldOutLoss(2.5, 3.4, drift=1.0).too_high
    assert HeldOutLoss(2.5, 2.7, drift=0.25).too_high
    for after, drift, too_noisy in ((2.5, 0.25, True), (2.54, 0.05, False), (2.54, 0.1, True)):
        loss = HeldOutLoss(2.5, after, drift)
        assert (loss.too_high, loss.too_noisy) == (False, too_noisy)
        trial = msgspec.structs.replace(WON, held_out_loss=loss)
        assert trial.worth_keeping is not too_noisy


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
def test_a_loss_that_is_worse_by_5_percent_is_kept_in_one_of_40_trials_at_most(
    noise: float,
) -> None:
    kept = 0
    for seed in range(400):
        chance, pairs = random.Random(seed), []
        for _ in range(4):
            sides = [
                [2.0 * rise * (1 + chance.gauss(0, noise)) for _ in range(8)]
                for rise in (1.0, 1.05)
            ]
            pairs.append((sides[0], sides[1]))
        firsts = [chance.choice((BASELINE, CHANGED)) for _ in pairs]
        kept += with_training_loss(WON, pairs, firsts).worth_keeping
    assert kept <= 10


@pytest.mark.parametrize("first", [BASELINE, CHANGED])
@pytest.mark.parametrize(("worse", "keeps"), [(0.0, True), (0.05, False)])
def test_the_progress_of_the_training_is_no_effect_of_the_change(
    first: int, worse: float, keeps: bool
) -> None:
    """The loss falls by a tenth from one block to the next, and the same side always comes
    first."""
    blocks = [4.0 * 0.9**place for place in range(12)]
    pairs = []
    for early, late in zip(blocks[::2], blocks[1::2], strict=True):
        before, after = (early, late) if first == BASELINE else (late, early)
        pairs.append(([before], [after * (1 + worse)]))
    trial = with_training_loss(WON, pairs, [first] * 6)
    assert trial.held_out_loss is not None
    assert trial.held_out_loss.cost_ratio == pytest.approx(worse, abs=0.015)
    assert trial.worth_keeping is keeps


class Falling(Sides):
    """A loss of which `fall` is left at each look."""

    fall = 0.8

    async def probe(self, name: str) -> ProbeDone:
        self.looks.append(self.arm)
        value = (
            5.0 * self.fall ** len(self.looks) * (1 + (self.worse if self.arm == CHANGED else 0.0))
        )
        if not math.isfinite(value):
            return ProbeDone(
                0.0,
                1,
                name,
                {"quality.held_out_loss_not_finite": Signal(1.0, "", "test")},
                None,
                0.0,
            )
        return ProbeDone(
            0.0, 1, name, {"quality.held_out_loss": Signal(value, "", "test")}, None, 0.0
        )


@pytest.mark.parametrize(
    ("fall", "worse", "keeps"),
    [(0.9, 0.0, True), (0.9, 0.15, False), (0.8, 0.0, False), (0.8, math.nan, False)],
)
def test_held_out_losses_are_compared_while_the_loss_falls_fast(
    fall: float, worse: float, keeps: bool
) -> None:
    """A loss that falls by a fifth between two looks cannot show a rise of 5 %."""
    won, sides = msgspec.structs.replace(WON, speedup=Speedup(1.5, 1.4, 1.6)), Falling(worse)
    sides.fall = fall
    trial = asyncio.run(with_quality(won, sides))  # type: ignore[arg-type]
    assert trial.worth_keeping is keeps
    assert trial.verdict == ("win" if math.isfinite(worse) else "worse")


class Diverges(FakeJob):
    """A job whose changed side is faster, and whose loss is NaN from some step on, on both
    sides."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._count, self._after, self.blocks = 0, after, 0

    async def switch_to(self, arm: int) -> None:
        self.blocks += 1
        await super().switch_to(arm)

    async def next_steps(self) -> None:
        self._count += self.arm == CHANGED
        seconds = 0.02 if self.arm == CHANGED else 0.03
        loss = 2.0 if self._count < self._after else math.nan
        phases = (seconds, *[0.0] * (len(PHASES) - 1))
        self.trial_steps.append(Step(0, 0.0, seconds, 8, 0, phases, phases, loss, self.arm))


def test_a_trial_ends_with_the_first_block_whose_loss_is_no_number() -> None:
    job = Diverges(100)
    run = Run("1", "train.py", "job", {"precision": "fp32"}, "gpu:0")
    trial = asyncio.run(
        run_trial(
            Trial("1", "1", {"precision": "bf16"}, order_seed=3), run, job, lambda trial: None
        )
    )  # type: ignore[arg-type]
    assert (trial.state, trial.verdict, trial.reason) == ("done", "worse", "the loss is not finite")
    assert verdict(trial) == "worse: reverted, the loss is not finite"
    assert job.blocks < 2 * MIN_PAIRS and not trial.worth_keeping
    kept = msgspec.json.decode(msgspec.json.encode(trial), type=Trial)
    assert kept == trial


OVERCOME = [2.0, math.inf, *[2.0] * 6]
"""A gradient scaler leaves out the step whose loss is infinite."""


@pytest.mark.parametrize(
    ("changes", "before", "after", "broken"),
    [
        ({"num_workers": 2}, OVERCOME, OVERCOME, False),
        ({"num_workers": 2}, [2.0] * 8, OVERCOME, False),
        ({"num_workers": 2}, [2.0] * 8, [*OVERCOME, math.inf, math.nan], True),
        ({"precision": "bf16"}, OVERCOME, OVERCOME, False),
        ({"precision": "bf16"}, OVERCOME, [2.0] * 8, False),
        ({"precision": "bf16"}, [2.0] * 8, OVERCOME, True),
        ({"precision": "bf16"}, OVERCOME, [2.0, math.inf] * 4, True),
    ],
)
def test_a_loss_that_the_program_overcomes_speaks_only_against_numerics_that_bring_more_of_them(
    changes: dict[str, Any], before: list[float], after: list[float], broken: bool
) -> None:
    watched = FiniteLoss(bool(changes.get("precision")))
    with pytest.raises(LossNotFinite) if broken else nullcontext():
        watch_losses(watched, [(before, after)] * 4)


def watch_losses(watched: FiniteLoss, pairs: list[tuple[list[float], list[float]]]) -> None:
    for before, after in pairs:
        watched.add(BASELINE, steps_of(before))
        watched.add(CHANGED, steps_of(after))


def steps_of(losses: list[float]) -> list[Step]:
    """A step for each loss; steps without a loss, where there is none."""
    phases = (0.02, *[0.0] * (len(PHASES) - 1))
    return [
        Step(place, 0.0, 0.02, 8, 0, phases, phases, loss)
        for place, loss in enumerate(losses or [None] * 8)
    ]


def test_a_loss_that_was_never_finite_is_not_the_work_of_the_change() -> None:
    run = Run("1", "train.py", "job", {"optim": "adamw"}, "gpu:0")
    trial = asyncio.run(
        run_trial(
            Trial("1", "1", {"optim": "adamw_fused"}, order_seed=3),
            run,
            Diverges(0),
            lambda trial: None,
        )
    )  # type: ignore[arg-type]
    assert trial.verdict == "win" and not trial.reason
