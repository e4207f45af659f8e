from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import msgspec
import pytest

from gpuconsole.experiments.statistics import BASELINE, CHANGED, MIN_STEPS, BlockPlan, plans, rate
from gpuconsole.experiments.trial import run_trial
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import PHASES, Run, Step, Summary
from gpuconsole.session.figures.distributions import distribution
from tests.experiments.fake_job import FakeJob


def steps(n: int, wall: float, runq: float = 0.0) -> list[Step]:
    phases = tuple([wall] + [0.0] * (len(PHASES) - 1))
    delays = tuple([runq] + [0.0] * (len(PHASES) - 1))
    return [Step(i, float(i), wall, 4, 0, phases, delays) for i in range(n)]


def test_blocks_hold_whole_periods_of_what_happens_now_and_then() -> None:
    plan = BlockPlan({"log_every": 3, "save_every": 6, "eval_every": 0}, ["save_every"])
    assert plan.count(0.2) == 6
    assert plan.count(0.02) == 18, "0.35 s are 17.5 steps"


def test_a_longer_block_is_longer_in_steps_and_in_seconds_and_holds_whole_periods() -> None:
    plan = BlockPlan({"log_every": 3, "save_every": 6, "eval_every": 0}, ["save_every"])
    assert plan.count(0.2, 1.5) == 12
    short = BlockPlan({}, ["precision"])
    assert short.count(0.06) == 6 and short.count(0.06, 2.0) == 12


def test_blocks_hold_whole_rounds_of_the_workers_and_whole_cycles() -> None:
    plan = BlockPlan({"num_workers": 4}, ["precision"])
    assert [plan.count(0.05, stretch) for stretch in (1.0, 1.5, 2.0)] == [8, 12, 16]
    assert plan.count(0.05, cycle=6) == 12
    assert BlockPlan({}, ["precision"]).count(2.0, cycle=6) == 5, (
        "no block lasts much longer than 2.5 s for the sake of a cycle"
    )


def test_a_side_on_which_it_happens_more_often_has_shorter_blocks() -> None:
    often, rarely = (BlockPlan({"save_every": every}, ["save_every"]) for every in (6, 30))
    assert (often.count(0.06), rarely.count(0.06)) == (6, 30)


def test_the_side_on_which_it_is_ten_times_rarer_need_not_wait_for_it() -> None:
    """Whatever its blocks miss is a tenth of what the other side pays, at most."""
    before: Knobs = {"save_every": 3, "log_every": 20}
    sides = {every: plans(before, {"save_every": every}, None) for every in (29, 30)}
    assert [sides[every][BASELINE].period for every in sides] == [20, 20], (
        "3 and 20 have no period of 40 steps or less in common: the longer"
    )
    assert [sides[every][CHANGED].period for every in sides] == [29, 20]
    back = plans({"save_every": 30}, {"save_every": 3}, None)
    assert (back[BASELINE].period, back[CHANGED].period) == (1, 3), (
        "whichever side is the changed one"
    )


def test_what_happens_too_rarely_for_a_block_makes_it_no_longer() -> None:
    assert BlockPlan({"save_every": 120}, ["save_every"]).count(0.2) == MIN_STEPS


def test_what_happens_now_and_then_and_costs_nothing_makes_no_block_longer() -> None:
    knobs = {"log_every": 20, "save_every": 0, "eval_every": 0}
    assert BlockPlan(knobs, ["optim"], {"logging": 0.001}).count(0.1) == MIN_STEPS
    assert BlockPlan(knobs, ["optim"], {"logging": 0.05}).count(0.1) == 20
    # it may weigh from now on
    assert BlockPlan(knobs, ["log_gradients"], {"logging": 0.001}).count(0.1) == 20
    assert (
        BlockPlan(
            {**knobs, "save_every": 3}, ["save_every"], {"logging": 0.001, "checkpoint": 0.2}
        ).period
        == 3
    )


def test_loader_changes_take_longer_blocks_on_the_wall_clock() -> None:
    assert BlockPlan({}, ["num_workers"]).through_loader
    assert BlockPlan({}, ["num_workers"]).count(0.1) == 8
    assert BlockPlan({}, ["precision"]).count(0.1) == MIN_STEPS


def test_rate_takes_off_run_queue_delay() -> None:
    assert rate(steps(10, 0.2, 0.1), contention_free=False) == pytest.approx(20.0)
    assert rate(steps(10, 0.2, 0.1), contention_free=True) == pytest.approx(40.0)


def test_the_first_steps_of_a_block_of_a_job_do_not_count() -> None:
    """The program does not mark them: an idle loader begins with a full queue."""
    sides = plans({"num_workers": 0, "prefetch_factor": 2}, {"num_workers": 4}, of_job=True)
    assert (sides[1].settling, sides[2].settling) == (1, 10)
    assert plans({"optim": "adamw"}, {"optim": "adamw_fused"}, of_job=True)[2].settling == 1
    assert plans({"num_workers": 0}, {"num_workers": 4})[2].settling == 0


def step_of_job(eval_s: float = 0.0, work_s: float = 0.02) -> Step:
    phases = tuple(
        eval_s if phase == "eval" else work_s if phase == "forward" else 0.0 for phase in PHASES
    )
    return Step(0, 0.0, work_s + eval_s, 8, 0, phases, tuple(0.1 * seconds for seconds in phases))


def test_evaluations_of_a_job_are_spread_over_the_steps_of_a_block() -> None:
    """A block of a second has an evaluation of two seconds or not, by chance."""
    shares = {"forward": 0.8, "eval": 0.2}
    plan = plans({}, {"optim": "adamw_fused"}, shares, of_job=True, step_s=0.025)[2]
    steps, own_s = plan.spread([step_of_job(), step_of_job(2.0), step_of_job()])
    assert own_s == pytest.approx(2.0)
    assert [step.wall_s for step in steps] == pytest.approx([0.025] * 3), (
        "each has the mean: a fifth of 25 ms"
    )
    assert all(sum(step.phases) == pytest.approx(step.wall_s) for step in steps)
    assert all(sum(step.runq or ()) == pytest.approx(0.002) for step in steps)


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"of_job": False, "step_s": 0.025}, "optim"),
        ({"of_job": True, "step_s": None}, "optim"),
        ({"of_job": True, "step_s": 0.025}, "eval_every"),
    ],
    ids=["a scenario", "no steps yet", "the change is about evaluations"],
)
def test_other_evaluations_stay_where_they_are(options: dict[str, Any], changes: str) -> None:
    steps = [step_of_job(), step_of_job(2.0)]
    plan = plans({"eval_every": 10}, {changes: 20}, {"forward": 0.8, "eval": 0.2}, **options)[2]
    assert plan.spread(steps)[0] == steps


class Evaluates(FakeJob):
    """A job whose changed steps take 20 ms and the others 26 ms, and which evaluates for a second
    after every 90 steps."""

    def __init__(self) -> None:
        super().__init__()
        self._index, self._chance = 0, random.Random(4)

    async def next_steps(self) -> None:
        self._index += 1
        work_s = (0.020 if self.arm == 2 else 0.026) * math.exp(self._chance.gauss(0.0, 0.1))
        step = step_of_job(1.0 if self._index % 90 == 0 else 0.0, work_s)
        self.trial_steps.append(
            msgspec.structs.replace(step, runq=None, arm=self.arm, t=0.026 * self._index)
        )


def test_evaluations_do_not_spoil_the_trial_of_a_job() -> None:
    mean_s = 0.026 + 1 / 90
    shares = {"forward": 0.026 / mean_s, "eval": 1 / 90 / mean_s}
    whole = mean_s / (mean_s - 0.006)
    run = Run(
        "1", "train.py", "job", {"optim": "adamw"}, "cpu", summary=Summary(phases_ratio=shares)
    )
    verdicts = []
    for mean in (None, distribution([mean_s] * 20)):
        run.summary.step_time_s = mean
        for seed in range(5):
            trial = Trial("1", "1", {"optim": "adamw_fused"}, order_seed=seed)
            ended = asyncio.run(run_trial(trial, run, Evaluates(), lambda trial: None))  # type: ignore[arg-type]
            verdicts.append(ended.verdict)
            if mean is not None:
                assert ended.speedup is not None and ended.spread_s >= 1
                assert (
                    ended.speedup.low < whole < ended.speedup.high
                    and ended.speedup.estimate == pytest.approx(whole, rel=0.05)
                )
    assert verdicts[:5] != ["win"] * 5 and verdicts[5:] == ["win"] * 5
