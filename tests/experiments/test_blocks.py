from __future__ import annotations

import asyncio
import math
import random
from typing import Any
from unittest import mock

import msgspec
import pytest

from gpuconsole.experiments import trial as trials
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


@pytest.mark.parametrize(
    ("options", "changes", "events_s"),
    [
        ({"of_job": True, "step_s": 0.025}, "optim", 0.005),
        ({"of_job": False, "step_s": 0.025}, "optim", None),
        ({"of_job": True, "step_s": None}, "optim", None),
        ({"of_job": True, "step_s": 0.025}, "eval_every", None),
    ],
    ids=["a job", "a scenario", "no steps yet", "the change is about evaluations"],
)
def test_evaluations_of_a_job_are_taken_out_of_its_steps(
    options: dict[str, Any], changes: str, events_s: float | None
) -> None:
    """A block of a second has an evaluation of two seconds or not, by chance."""
    shares = {"forward": 0.8, "eval": 0.2}
    plan = plans({"eval_every": 10}, {changes: 20}, shares, **options)[2]
    evaluates, of_eval = step_of_job(2.0), PHASES.index("eval")
    if events_s is None:
        assert of_eval not in plan.events_s
        assert plan.without_events(evaluates) == pytest.approx((2.02, 0.202))
    else:
        assert plan.events_s[of_eval] == pytest.approx(events_s)
        assert plan.without_events(evaluates) == pytest.approx((0.02, 0.002))
        assert plan.wall_s(evaluates) == pytest.approx(0.025)


class Evaluates(FakeJob):
    """A job that evaluates after every `every` steps. The steps of the baseline take 26 ms.
    `changed_s`, `evals_s`: of a step with the change, and of an evaluation, by arm."""

    def __init__(self, changed_s: float, evals_s: tuple[float, float], every: int) -> None:
        super().__init__()
        self._steps_s, self._evals_s, self._every = (0.026, changed_s), evals_s, every
        self._index, self._chance = 0, random.Random(4)
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    async def next_steps(self) -> None:
        self._index += 1
        noise = math.exp(self._chance.gauss(0.0, 0.1))
        of_arm = self.arm - 1
        eval_s = 0.0 if self._index % self._every else self._evals_s[of_arm] * noise
        step = step_of_job(eval_s, self._steps_s[of_arm] * noise)
        self.now_s += step.wall_s
        self.trial_steps.append(
            msgspec.structs.replace(step, runq=None, arm=self.arm, t=self.now_s)
        )


def trial_of(job: Evaluates, seed: int, before: bool = True) -> Trial:
    """A trial of `job` on its own clock. `before`: the time of a step before the trial is known."""
    eval_s = job._evals_s[0] / job._every
    mean_s = 0.026 + eval_s
    summary = Summary(phases_ratio={"forward": 0.026 / mean_s, "eval": eval_s / mean_s})
    summary.step_time_s = distribution([mean_s] * 20) if before else None
    run = Run("1", "train.py", "job", {"optim": "adamw"}, "cpu", summary=summary)
    asked = Trial("1", "1", {"optim": "adamw_fused"}, order_seed=seed)
    with mock.patch.object(trials, "time", job):
        return asyncio.run(run_trial(asked, run, job, lambda trial: None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed_s", "evals_s", "every", "verdict"),
    [
        (0.020, (1.0, 1.0), 90, "win"),
        (0.020, (1.0, 0.7), 90, "win"),
        (0.020, (0.5, 2.5), 60, "worse"),  # the steps gain, the evaluations lose more
        (0.026, (1.0, 1.0), 90, None),
    ],
)
def test_the_evaluations_of_each_side_count(
    changed_s: float, evals_s: tuple[float, float], every: int, verdict: str | None
) -> None:
    truth = (every * 0.026 + evals_s[0]) / (every * changed_s + evals_s[1])
    verdicts = []
    for seed in range(6):
        ended = trial_of(Evaluates(changed_s, evals_s, every), seed)
        assert ended.speedup is not None and ended.spread_s >= 1
        verdicts.append(ended.verdict)
        if not ended.unseen:
            assert ended.speedup.low < truth < ended.speedup.high
    if verdict is None:
        assert not {"win", "worse"} & set(verdicts)
    else:
        assert verdicts.count(verdict) >= 5 and set(verdicts) <= {verdict, "undecided"}


def test_a_win_without_an_evaluation_is_undecided_where_a_slower_one_could_use_it_up() -> None:
    """The next evaluation comes long after the trial."""
    ended = trial_of(Evaluates(0.020, (20.0, 20.0), 10_000), 1)
    assert (ended.verdict, ended.unseen) == ("undecided", ("eval",))
    rare = trial_of(Evaluates(0.013, (20.0, 20.0), 50_000), 1)
    assert (rare.verdict, rare.unseen) == ("win", ("eval",)), "2 % of the time, 2x faster"


def test_a_trial_without_the_time_of_a_step_counts_evaluations_where_they_come() -> None:
    verdicts = [
        trial_of(Evaluates(0.020, (1.0, 1.0), 90), seed, before=False).verdict for seed in range(5)
    ]
    assert verdicts != ["win"] * 5
