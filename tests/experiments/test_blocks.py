import pytest

from gpuconsole.experiments.statistics import BASELINE, CHANGED, BlockPlan, plans, rate
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import PHASES, Step


def steps(n: int, wall: float, runq: float = 0.0) -> list[Step]:
    phases = tuple([wall] + [0.0] * (len(PHASES) - 1))
    delays = tuple([runq] + [0.0] * (len(PHASES) - 1))
    return [Step(i, float(i), wall, 4, 0, phases, delays) for i in range(n)]


def test_blocks_hold_whole_periods_of_what_happens_now_and_then() -> None:
    plan = BlockPlan({"log_every": 3, "save_every": 6, "eval_every": 0}, ["save_every"])
    assert not plan.complete(steps(5, 0.2))
    assert plan.complete(steps(6, 0.2))
    assert len(plan.trimmed(steps(14, 0.2))) == 12


def test_a_longer_block_is_longer_in_steps_and_in_seconds_and_holds_whole_periods() -> None:
    plan = BlockPlan({"log_every": 3, "save_every": 6, "eval_every": 0}, ["save_every"])
    assert not plan.complete(steps(8, 0.2), 1.5) and plan.complete(steps(9, 0.2), 1.5)
    assert len(plan.trimmed(steps(9, 0.2))) == 6
    short = BlockPlan({}, ["precision"])
    assert not short.complete(steps(10, 0.06), 2.0) and short.complete(steps(12, 0.06), 2.0)


def test_a_side_on_which_it_happens_more_often_has_shorter_blocks() -> None:
    often, rarely = (BlockPlan({"save_every": every}, ["save_every"]) for every in (6, 30))
    assert often.complete(steps(6, 0.06))
    assert not rarely.complete(steps(29, 0.06))
    assert rarely.complete(steps(30, 0.06))


def test_the_side_on_which_it_is_ten_times_rarer_need_not_wait_for_it() -> None:
    """Whatever its blocks miss is a tenth of what the other side pays, at most."""
    before: Knobs = {"save_every": 3, "log_every": 20}
    sides = {every: plans(before, {"save_every": every}, None) for every in (29, 30)}
    assert [sides[every][BASELINE].period for every in sides] == [20, 20], (
        "3 and 20 have no period of 40 steps or less in common: the longer"
    )
    assert [sides[every][CHANGED].period for every in sides] == [29, 20]
    back = plans({"save_every": 30}, {"save_every": 3}, None)
    assert (back[BASELINE].period, back[CHANGED].period) == (1, 3), "whichever side is the changed one"


def test_what_happens_too_rarely_for_a_block_makes_it_no_longer() -> None:
    assert BlockPlan({"save_every": 120}, ["save_every"]).complete(steps(6, 0.2))


def test_what_happens_now_and_then_and_costs_nothing_makes_no_block_longer() -> None:
    knobs = {"log_every": 20, "save_every": 0, "eval_every": 0}
    assert BlockPlan(knobs, ["optim"], {"logging": 0.001}).complete(steps(6, 0.2))
    assert not BlockPlan(knobs, ["optim"], {"logging": 0.05}).complete(steps(6, 0.2))
    assert not BlockPlan(knobs, ["log_gradients"], {"logging": 0.001}).complete(steps(6, 0.2))  # it may weigh from now on
    assert BlockPlan({**knobs, "save_every": 3}, ["save_every"], {"logging": 0.001, "checkpoint": 0.2}).period == 3


def test_loader_changes_take_longer_blocks_on_the_wall_clock() -> None:
    assert BlockPlan({}, ["num_workers"]).through_loader
    assert not BlockPlan({}, ["num_workers"]).complete(steps(6, 0.1))
    assert BlockPlan({}, ["precision"]).complete(steps(6, 0.1))


def test_rate_takes_off_run_queue_delay() -> None:
    assert rate(steps(10, 0.2, 0.1), contention_free=False) == pytest.approx(20.0)
    assert rate(steps(10, 0.2, 0.1), contention_free=True) == pytest.approx(40.0)


def test_the_first_steps_of_a_block_of_a_job_do_not_count() -> None:
    """The program does not mark them: an idle loader begins with a full queue."""
    sides = plans({"num_workers": 0, "prefetch_factor": 2}, {"num_workers": 4}, of_job=True)
    assert (sides[1].settling, sides[2].settling) == (1, 10)
    assert plans({"optim": "adamw"}, {"optim": "adamw_fused"}, of_job=True)[2].settling == 1
    assert plans({"num_workers": 0}, {"num_workers": 4})[2].settling == 0
