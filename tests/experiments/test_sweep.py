"""Sweeps: the points and their order, what the intervals prove, and the workers that measure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest

from gpuconsole.engine.catalog import find_scenario
from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.experiments import sweep as sweeping
from gpuconsole.experiments.statistics import one_step
from gpuconsole.experiments.sweep import MIN_REPEATS, Sweeper, add_repeat, evaluate, points
from gpuconsole.model.experiments import Sweep, SweepPoint
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Step
from gpuconsole.wire.events import KnobsSet, Started

BASE: Knobs = {"batch_size": 8, "num_workers": 0, "precision": "fp32"}


def test_one_factor_at_a_time_goes_through_the_base_once() -> None:
    found = points({"batch_size": [4, 8], "num_workers": [0, 1, 2]}, BASE, False)
    assert found == [
        {"batch_size": 8, "num_workers": 0},
        {"batch_size": 4, "num_workers": 0},
        {"batch_size": 8, "num_workers": 1},
        {"batch_size": 8, "num_workers": 2},
    ]


def test_base_values_that_the_user_did_not_name_are_left_out() -> None:
    assert points({"batch_size": [1, 2]}, BASE, False) == [{"batch_size": 1}, {"batch_size": 2}]


def test_a_grid_has_every_combination() -> None:
    assert len(points({"batch_size": [4, 8], "num_workers": [0, 1, 2]}, BASE, True)) == 6


# --- statistics -----------------------------------------------------------------------------------


def swept(*rates: list[float]) -> Sweep:
    sweep = Sweep(
        "s",
        "cpu",
        "tokens/s",
        {},
        [SweepPoint({"batch_size": n}, values) for n, values in enumerate(rates)],
        len(rates[0]),
    )
    evaluate(sweep)
    return sweep


def test_a_point_that_is_clearly_slower_is_settled_and_a_point_that_may_be_best_is_not() -> None:
    sweep = swept([10.0, 10.1, 9.9, 10.0], [9.9, 10.2, 9.8, 10.1], [5.0, 5.1, 4.9, 5.0], [1.0, 1.0])
    assert [one.settled for one in sweep.points] == [False, False, True, False], (
        "two repeats prove nothing"
    )
    assert sweep.best is sweep.points[0] and sweep.rivals == [sweep.points[1]]


def test_a_single_repeat_has_no_interval() -> None:
    sweep = swept([5.0], [6.0])
    assert sweep.points[0].low is None and sweep.rivals == [sweep.points[0]], "nothing is proven"


def test_points_that_do_not_differ_are_hardly_ever_told_apart_however_often_one_evaluates() -> None:
    """200 sweeps of 8 equal settings with 5 % noise, evaluated after every round: at most 5 % may
    claim a difference."""
    wrong = 0
    for seed in range(200):
        chance, found = random.Random(seed), [SweepPoint({"batch_size": n}) for n in range(8)]
        claimed = False
        for number in range(12):
            for point in found:
                point.rates.append(100 * (1 + chance.gauss(0, 0.05)))
            sweep = Sweep("s", "cpu", "tokens/s", {}, found, 12)
            evaluate(sweep)
            claimed = claimed or (number + 1 >= MIN_REPEATS and len(sweep.rivals) < 7)
        wrong += claimed
    assert wrong <= 10


def test_the_best_of_many_is_not_overstated() -> None:
    """The interval of the fastest of 16 equal settings must hold the truth, although the fastest
    was chosen because it was fast."""
    missed = 0
    for seed in range(200):
        chance = random.Random(seed)
        best = swept(
            *([100 * (1 + chance.gauss(0, 0.03)) for _ in range(5)] for _ in range(16))
        ).best
        assert best is not None and best.low is not None and best.high is not None
        missed += not best.low <= 100 <= best.high
    assert missed <= 10


def step(number: int, wall_s: float) -> Step:
    return Step(number, 0.0, wall_s, 8, 0, ())


def test_the_mean_of_a_setting_is_work_over_time_of_all_its_repeats() -> None:
    """The mean of the rates of the blocks of the second setting is 5.5."""
    steady, stalls = SweepPoint({"batch_size": 1}), SweepPoint({"batch_size": 2})
    for of_steady, of_stalls in (((1.0, 1.0), (0.1, 0.1)), ((1.0, 1.0), (0.1, 1.9))):
        for point, walls in ((steady, of_steady), (stalls, of_stalls)):
            steps = [step(n, wall) for n, wall in enumerate(walls)]
            add_repeat(point, steps, False, one_step)
    assert (steady.mean, stalls.mean) == (pytest.approx(1.0), pytest.approx(4 / 2.2))
    assert sum(stalls.linear_rates) / 2 == pytest.approx(stalls.mean)
    assert (stalls.rates, stalls.seconds, stalls.steps) == (
        pytest.approx([10.0, 1.0]),
        pytest.approx([0.2, 2.0]),
        4,
    )


def test_a_file_without_the_seconds_of_repeats_is_read_and_shown() -> None:
    old = msgspec.json.decode(b'{"knobs": {}, "rates": [10.0, 1.0]}', type=SweepPoint)
    assert old.mean == pytest.approx(2 / (1 / 10 + 1 / 1)), "the same work in each repeat"
    for damaged in (b"[0.0]", b"[-1]", b'[1.0], "seconds": [1, 2]', b'[1], "seconds": [0]'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(b'{"knobs": {}, "rates": %s}' % damaged, type=SweepPoint)


def test_a_setting_that_stalls_is_not_preferred() -> None:
    """Both settings make 20 steps/s. By the mean of the rates of its blocks, the second was called
    the best of 93 % of the sweeps."""
    preferred = missed = proven = 0
    for seed in range(100):
        chance = random.Random(seed)
        found = [SweepPoint({"batch_size": size}) for size in (1, 2)]
        sweep = Sweep("s", "cpu", "steps/s", {}, found, 10)
        for _ in range(10):
            for point, stall_s in zip(found, (0.0, 0.5), strict=True):
                walls = [
                    0.05 - 0.04 * stall_s + stall_s * (chance.random() < 0.04) for _ in range(17)
                ]
                add_repeat(point, [step(n, wall) for n, wall in enumerate(walls)], False, one_step)
        evaluate(sweep)
        low, high = found[1].low, found[1].high
        assert low is not None and high is not None
        preferred += sweep.best is found[1]
        missed += not low <= 20 <= high
        proven += not sweep.rivals
    assert 30 <= preferred <= 70 and missed <= 5 and proven <= 1
    assert sweep.stalls_from == 32, "170 steps of each setting"


def test_a_real_difference_is_found() -> None:
    chance = random.Random(1)
    sweep = swept(
        *([rate * (1 + chance.gauss(0, 0.02)) for _ in range(10)] for rate in (100.0, 80.0, 60.0))
    )
    assert sweep.best is sweep.points[0] and not sweep.rivals


# --- workers --------------------------------------------------------------------------------------


class FakeWorker:
    """Makes a step of 1 s whenever somebody waits for steps; hangs where its knobs have `d_model`
    999."""

    all: ClassVar[list[FakeWorker]] = []
    live_limit: ClassVar[bool] = True

    def __init__(self, *arguments: Any) -> None:
        self.trial_steps: list[Step] = []
        self.alive, self.running, self.arm = True, False, 0
        self.last_started: Started | None = None
        self.last_server = None
        self.set: list[Knobs] = []
        FakeWorker.all.append(self)

    async def launch(self) -> None: ...

    def start(
        self,
        workload: str,
        knobs: Knobs,
        device: Device,
        options: dict[str, str],
        gpus: tuple[str, ...],
    ) -> None:
        self.knobs, self.running = dict(knobs), True
        facts = (
            {"live_limit.max_num_seqs": float(knobs["max_num_seqs"])}
            if self.live_limit and "max_num_seqs" in knobs
            else {}
        )
        self.last_started = Started(0.0, knobs, facts)

    async def next_steps(self) -> None:
        others = [one for one in FakeWorker.all if one is not self and one.alive and one.running]
        assert self.running and not others, "two workers run at the same time"
        if self.knobs.get("d_model") == 999:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        self.trial_steps += [Step(n, 0.0, 1.0, 8, 8, (), None, None, self.arm) for n in range(5)]

    async def pause(self) -> None:
        self.running = False

    def resume(self, arm: int) -> None:
        self.running, self.arm = True, arm

    async def set_knobs(self, changes: Knobs, arm: int) -> KnobsSet:
        self.set.append(changes)
        self.knobs |= changes
        self.arm = arm
        return KnobsSet(0.0, 0, 0, self.knobs)

    def cause(self) -> str:
        return "killed"

    def kill(self) -> None:
        self.alive = self.running = False

    async def stop(self) -> None:
        self.alive = self.running = False


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sweep]:
    monkeypatch.setattr(FakeWorker, "all", [])
    monkeypatch.setattr(FakeWorker, "live_limit", True)
    monkeypatch.setattr(sweeping, "WorkerHandle", FakeWorker)
    monkeypatch.setattr(sweeping, "START_S", 0.1)

    def run(scenario: str, found: list[Knobs], **overrides: Any) -> Sweep:
        chosen = find_scenario(scenario)

        async def body() -> Sweep:
            sweeper = Sweeper(
                chosen,
                {**chosen.knobs_for("cpu"), **overrides},
                Device("cpu", "cpu"),
                ServingChoice(),
            )
            try:
                return await sweeper.run(found, 2, False, lambda sweep: None)
            finally:
                await sweeper.close()

        return asyncio.run(asyncio.wait_for(body(), 20.0))

    return run


def test_a_point_that_times_out_leaves_no_worker_beside_the_others(
    sweep: Callable[..., Sweep],
) -> None:
    """The fake worker fails the test where another worker still runs. A second point that needs the
    same worker is not waited for again."""
    found = sweep("train-gpt", points({"d_model": [64, 999], "batch_size": [4, 8]}, {}, True))
    assert [bool(point.error) for point in found.points] == [False, False, True, True]
    assert "no step within" in found.points[2].error
    assert all(len(point.rates) == 2 for point in found.points[:2])
    assert len([one for one in FakeWorker.all if one.knobs["d_model"] == 999]) == 1


def test_a_limit_that_applies_live_needs_no_server_of_its_own(sweep: Callable[..., Sweep]) -> None:
    found = sweep("serve-chat", [{"max_num_seqs": seats} for seats in (4, 16, 8)])
    assert all(len(point.rates) == 2 for point in found.points)
    (server,) = FakeWorker.all
    assert {"max_num_seqs": 4} in server.set, "the limit is lowered while the server runs"


@pytest.mark.parametrize("first", [4, 8, 16])
def test_a_server_that_reports_no_live_limit_is_started_for_every_value(
    sweep: Callable[..., Sweep], monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """In each order: with the largest value first, a second server with this value was started."""
    others = [place for place in range(3) if place != (4, 16, 8).index(first)]
    monkeypatch.setattr(
        sweeping,
        "rounds",
        lambda *_: [[((4, 16, 8).index(first), 1.0), *((place, 1.0) for place in others)]] * 3,
    )
    FakeWorker.live_limit = False
    found = sweep("serve-chat", [{"max_num_seqs": seats} for seats in (4, 16, 8)])
    assert all(len(point.rates) == 2 for point in found.points)
    assert sorted(int(one.knobs["max_num_seqs"]) for one in FakeWorker.all) == [4, 8, 16]
