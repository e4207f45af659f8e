"""How many steps a block has, and trials whose steps come in bursts, wait for a loader or have no
known samples."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from benchmarks.trial_steps import ROWS, STEP_S, Row, bursts, constant, loader, lognormal, simulated
from gpuconsole.experiments.blocks import Events, MeasuredPairs
from gpuconsole.experiments.certificate import _of_trial
from gpuconsole.experiments.statistics import BASELINE, CHANGED, BlockPlan, work_of_step
from gpuconsole.experiments.steps import Lengths, NextBlock, StepNoise, cycle_of
from gpuconsole.experiments.sweep import JobSweeper
from gpuconsole.experiments.trial import run_trial
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.run import PHASES, Run, Step
from gpuconsole.report.experiments import trial_report
from gpuconsole.report.parts import Line
from gpuconsole.session.api import SessionError
from gpuconsole.wire.events import KnobsSet
from tests.experiments.fake_job import FakeJob

PLAN = BlockPlan({}, ["optim"])


def step(seconds: float, arm: int = CHANGED, samples: int = 8) -> Step:
    return Step(0, 0.0, seconds, samples, 0, (seconds, *[0.0] * (len(PHASES) - 1)), arm=arm)


def shown(trial: Trial) -> str:
    return "\n".join(
        "".join(text for text, _ in line.segments)
        for line in trial_report(trial, None)
        if isinstance(line, Line)
    )


def test_the_length_of_a_block_does_not_depend_on_its_own_steps() -> None:
    plan = BlockPlan({}, ["optim"])
    for own in (0.001, 1.0):
        block = NextBlock(plan, Lengths(0.05), BASELINE, 1.0)
        block._skipped = 0
        arrived = list[Step]()
        while (counted := block.counted(arrived)) is None:
            arrived.append(step(own, BASELINE))
        assert len(counted) == 7


def test_where_nothing_is_known_a_few_steps_are_seen_first() -> None:
    lengths = Lengths()
    block = NextBlock(BlockPlan({}, ["optim"]), lengths, CHANGED, 1.0)
    assert block.counted([step(0.01)] * 39) is None
    counted = block.counted([step(0.01)] * 40)
    assert counted is not None and len(counted) == 35
    assert lengths.step_s(CHANGED) == pytest.approx(0.01) and lengths.step_s(BASELINE) is None


def test_the_first_block_of_a_change_has_the_length_that_its_own_steps_need() -> None:
    """The loop waits for its data: 40 ms a step, and 6 ms with eight workers, whose batches come
    together."""
    plan, own = (
        BlockPlan({"num_workers": 8}, ["num_workers"]),
        itertools.cycle([0.034, *[0.002] * 7]),
    )
    block = NextBlock(plan, Lengths(0.04), CHANGED, 1.0)
    arrived = list[Step]()
    while (counted := block.counted(arrived)) is None:
        arrived.append(step(next(own)))
    assert sum(one.wall_s for one in counted) >= plan.min_s and len(counted) % 8 == 0


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_the_cycle_of_bursts_is_seen(count: int) -> None:
    steps = bursts(STEP_S, count)(random.Random(count))
    assert cycle_of([list(itertools.islice(steps, 21)) for _ in range(4)]) == count


def test_steps_without_a_cycle_have_none() -> None:
    for draw in (constant(STEP_S), lognormal(STEP_S, 0.3), lognormal(STEP_S, 1.0)):
        for seed in range(20):
            steps = draw(random.Random(seed))
            assert cycle_of([list(itertools.islice(steps, 14)) for _ in range(6)]) == 1


def test_pairs_that_agree_by_chance_are_no_proof_where_the_steps_differ() -> None:
    noise = StepNoise(work_of_step, PLAN, False)
    chance = random.Random(1)
    for arm in (BASELINE, CHANGED) * 4:
        noise.add(arm, [step(chance.choice((0.01, 0.09)), arm) for _ in range(16)])
    assert noise.deviation({BASELINE: 1, CHANGED: 1}) == pytest.approx(
        0.8 * (2 / 16) ** 0.5, rel=0.15
    )
    even = StepNoise(work_of_step, PLAN, False)
    for arm in (BASELINE, CHANGED) * 4:
        even.add(arm, [step(seconds, arm) for seconds in (0.01, 0.09) * 8])
    assert even.deviation({BASELINE: 2, CHANGED: 2}) == pytest.approx(0.0, abs=1e-9), (
        "whole cycles are equal"
    )
    assert even.stalls_from == round(64 / 5.3)


@pytest.mark.parametrize(
    "row",
    [
        Row(bursts(STEP_S, 4), constant(STEP_S)),
        Row(constant(STEP_S), bursts(STEP_S, 4)),
        Row(
            loader(STEP_S, 6),
            loader(STEP_S, 1),
            1.0,
            {"num_workers": 6, "prefetch_factor": 2},
            {"num_workers": 1},
        ),
    ],
    ids=["bursts to constant", "constant to bursts", "a loader at its limit"],
)
def test_steps_of_the_same_mean_are_no_effect(row: Row) -> None:
    ended = [simulated(row, seed) for seed in range(12)]
    assert not {trial.verdict for trial in ended} & {"win", "worse"}
    covered = [
        trial.speedup is not None and trial.speedup.low <= 1.0 <= trial.speedup.high
        for trial in ended
    ]
    assert covered.count(False) <= 1


def test_an_effect_on_even_steps_is_found_as_soon_as_before() -> None:
    ended = [simulated(ROWS["constant, effect 1.10"], seed) for seed in range(10)]
    assert [trial.verdict for trial in ended] == ["win"] * 10 and sum(
        trial.blocks for trial in ended
    ) <= 84
    for trial in ended:
        assert _of_trial(trial) == [], "the record is enough to compute the verdict again"
        assert (
            f"the trial was too short to see a stall rarer than one in {trial.stalls_from} steps"
            in shown(trial)
        )


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("bursts of 2, effect 1.10", 10),
        ("bursts of 4, effect 1.10", 10),
        ("bursts of 8, effect 1.10", 5),
    ],
)
def test_an_effect_on_steps_in_bursts_is_found(kind: str, least: int) -> None:
    """The first blocks end before the cycle of the bursts is known; they count in whole cycles
    later."""
    assert [simulated(ROWS[kind], seed).verdict for seed in range(10)].count("win") >= least


def test_a_block_of_unequal_steps_whose_cycle_is_not_known_is_longer() -> None:
    plan, lengths = BlockPlan({}, ["optim"]), Lengths(0.05)
    assert lengths.count(BASELINE, plan, 1.0) == 7
    lengths.add(BASELINE, [0.3, *[0.01] * 6])
    assert lengths.count(BASELINE, plan, 1.0) == 14


def test_a_trial_on_long_steps_in_bursts_ends_soon_after_its_limit() -> None:
    """A cycle of eight steps takes eight seconds. No block is made of such cycles, so each pair of
    blocks counts."""
    row = Row(bursts(1.0, 8, 0.1), bursts(1.0, 8, 0.1))
    ended = [simulated(row, seed) for seed in range(20)]
    assert (
        max(trial.elapsed_s for trial in ended) < 150 and max(trial.blocks for trial in ended) <= 16
    )


def test_a_pair_whose_whole_cycles_have_no_work_does_not_count() -> None:
    """A batch is trained several times: only the first of its steps has samples."""
    blocks = {
        arm: [*[step(0.05, arm, samples=0)] * 6, step(0.05, arm)] for arm in (BASELINE, CHANGED)
    }
    measured = MeasuredPairs(PLAN, Events({}), work_of_step)
    measured.add(BASELINE, blocks)
    assert len(measured.pairs(False).log_ratios) == 1
    measured.cycles[CHANGED] = 2
    assert measured.pairs(False).log_ratios == []


class Unknown(FakeJob):
    """A job whose samples are not known; with the change its steps take half the time."""

    samples = 0

    async def next_steps(self) -> None:
        self.trial_steps.append(
            step(
                0.05 if self.arm == CHANGED else 0.1,
                self.arm,
                self.samples if self.arm == CHANGED else 0,
            )
        )


def of_job(changes: Knobs, job: FakeJob) -> Trial:
    run = Run("1", "train.py", "job", dict.fromkeys(changes, 1), "gpu:0")
    return asyncio.run(
        run_trial(Trial("1", "1", changes, order_seed=3), run, job, lambda trial: None)
    )  # type: ignore[arg-type]


def test_a_job_whose_samples_are_not_known_is_compared_by_its_steps() -> None:
    trial = of_job({"num_threads": 2}, Unknown())
    assert trial.verdict == "win" and trial.speedup is not None and trial.by_steps
    assert trial.speedup.estimate == pytest.approx(2.0)
    assert "compared by steps per second" in shown(trial)


def test_steps_are_not_compared_where_the_change_alters_what_is_in_them() -> None:
    trial = of_job({"batch_size": 2}, Unknown())
    assert (trial.state, trial.error) == (
        "failed",
        "the number of samples in a step is not known, and batch_size changes this number",
    )
    known = Unknown()
    known.samples = 8
    assert of_job({"num_threads": 2}, known).error == "no work was done in a whole block"


class Sweeps(Unknown):
    """The worker of a sweep of such a job."""

    alive = True

    async def set_knobs(self, changes: Knobs, arm: int) -> KnobsSet:
        await self.switch_to(arm)
        return KnobsSet(0.0, 1, 0, changes)


class KnownLater(Sweeps):
    """The first block has no known samples; the later ones have."""

    made = 0

    async def next_steps(self) -> None:
        self.made += 1
        self.trial_steps.append(step(0.1, self.arm, 8 if self.made > 50 else 0))


def test_the_unit_of_a_sweep_is_that_of_its_rates() -> None:
    sweeper = JobSweeper(
        Run("1", "train.py", "job", {"num_threads": 1}, "gpu:0"), KnownLater(), Device("gpu:0", "")
    )  # type: ignore[arg-type]
    sweep = asyncio.run(
        sweeper.run([{"num_threads": 1}, {"num_threads": 2}], 4, False, lambda sweep: None)
    )
    assert [point.mean for point in sweep.points] == pytest.approx([10.0, 10.0], rel=0.01)
    assert sweep.unit == "steps/s"


@pytest.mark.parametrize(("knob", "unit"), [("num_threads", "steps/s"), ("batch_size", "tokens/s")])
def test_a_sweep_of_such_a_job_counts_steps_or_says_why_it_cannot(knob: str, unit: str) -> None:
    run = Run("1", "train.py", "job", {knob: 1}, "gpu:0")
    sweeper = JobSweeper(run, Sweeps(), Device("gpu:0", ""))  # type: ignore[arg-type]
    points: list[Knobs] = [{knob: 1}, {knob: 2}]
    if unit == "steps/s":
        sweep = asyncio.run(sweeper.run(points, 2, False, lambda sweep: None))
        assert sweep.unit == unit and [point.error for point in sweep.points] == ["", ""]
        assert [point.mean for point in sweep.points] == pytest.approx([10.0, 20.0], rel=0.01)
    else:
        with pytest.raises(
            SessionError,
            match=(
                "the number of samples in a step is not known, and batch_size changes this number"
            ),
        ):
            asyncio.run(sweeper.run(points, 2, False, lambda sweep: None))
