"""The rhythm that the blocks of a trial show: named where there is one, with its period and
amplitude, and not in noise."""

from __future__ import annotations

import asyncio
import itertools
import math
import random

import msgspec
import pytest

from benchmarks.trial_statistics import trial as simulated
from gpuconsole.experiments.block_order import order
from gpuconsole.experiments.rhythm import MeasuredBlock, first_rhythm, rhythm_of
from gpuconsole.experiments.statistics import CHANGED
from gpuconsole.experiments.sweep import JobSweeper
from gpuconsole.experiments.trial import run_trial
from gpuconsole.model.experiments import Rhythm, Speedup, Trial
from gpuconsole.model.job import JOB
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.run import PHASES, Run, Step
from gpuconsole.report.experiments import (
    paint_done,
    rhythm_note,
    sweep_report,
    trial_report,
    verdict_line,
)
from gpuconsole.report.parts import printed
from gpuconsole.wire.events import KnobsSet
from tests.experiments.fake_job import FakeJob

MIN_S, STEP_S, PERIOD_S = 0.35, 0.05, 2.4


def blocks(
    seed: int,
    pairs: int,
    period_s: float,
    amplitude: float,
    noise: float,
    effect: float = 1.0,
    dead_s: float = 0.02,
) -> list[MeasuredBlock]:
    """The blocks of a trial in a job whose log rate is a wave; `dead_s` passes between two
    blocks."""
    chance, blocks, end_s = random.Random(seed), list[MeasuredBlock](), 1000.0
    phase = chance.uniform(0, 2 * math.pi)
    for block in itertools.chain.from_iterable(itertools.islice(order(seed), pairs)):
        start_s, end_s = end_s + dead_s, end_s + dead_s + MIN_S * block.stretch
        moments = [start_s + (end_s - start_s) * (n + 0.5) / 50 for n in range(50)]
        wave = (
            sum(amplitude * math.sin(2 * math.pi * moment / period_s + phase) for moment in moments)
            / 50
        )
        effect_here = math.log(effect) if block.arm == CHANGED else 0.0
        blocks.append(
            MeasuredBlock(
                block.arm, start_s, end_s, 3.0 + wave + effect_here + chance.gauss(0.0, noise)
            )
        )
    return blocks


@pytest.mark.parametrize("effect", [1.0, 1.3])
@pytest.mark.parametrize("period_s", [1.5, 4.0])
def test_a_rhythm_is_named_with_its_period_and_its_amplitude(
    period_s: float, effect: float
) -> None:
    for seed in range(5):
        rhythm = rhythm_of(blocks(seed, 17, period_s, 0.12, 0.02, effect))
        assert rhythm is not None
        assert rhythm.period_s == pytest.approx(
            period_s, rel=0.05
        ) and rhythm.amplitude_ratio == pytest.approx(0.12, rel=0.25)


def test_an_effect_or_a_drift_is_no_rhythm() -> None:
    for seed in range(20):
        assert rhythm_of(blocks(seed, 17, 4.0, 0.0, 0.01, effect=2.0)) is None
        drifting = [
            block._replace(log_rate=block.log_rate + 0.1 * block.start_s)
            for block in blocks(seed, 17, 4.0, 0.0, 0.01)
        ]
        assert rhythm_of(drifting) is None


def test_what_cannot_come_back_or_does_not_matter_is_not_named() -> None:
    assert rhythm_of(blocks(1, 4, 1.5, 0.12, 0.001)) is None, "eight blocks"
    assert rhythm_of(blocks(1, 17, 15.0, 0.12, 0.001)) is None, (
        "the trial is shorter than two periods"
    )
    assert rhythm_of(blocks(1, 17, 4.0, 0.005, 0.0001)) is None, "half a percent"
    assert (
        rhythm_of([block._replace(log_rate=1.0) for block in blocks(1, 17, 4.0, 0.0, 0.0)]) is None
    ), "no variation at all"


class Sides(FakeJob):
    """A job whose steps take STEP_S, and longer in every second half of PERIOD_S: on the wall clock
    or in the run-queue delay alone."""

    def __init__(self, waits: bool) -> None:
        super().__init__()
        self._waits, self._now = waits, 100.0
        self._chance = random.Random(3)

    async def next_steps(self) -> None:
        usual_s = STEP_S * math.exp(self._chance.gauss(0.0, 0.05))
        wall_s = usual_s * (1.25 if self._now % PERIOD_S < PERIOD_S / 2 else 1.0)
        self._now += wall_s
        phases = (wall_s, *[0.0] * (len(PHASES) - 1))
        delays = (wall_s - usual_s if self._waits else 0.0, *[0.0] * (len(PHASES) - 1))
        self.trial_steps.append(Step(0, self._now, wall_s, 4, 0, phases, delays, arm=self.arm))


@pytest.mark.parametrize(("waits", "clock"), [(False, "contention_free"), (True, "wall")])
def test_a_trial_names_the_rhythm_of_its_job(waits: bool, clock: str) -> None:
    run = Run("1", "s", "training.gpt", {"optim": "adamw"}, "cpu")
    trial = Trial("1", "1", {"optim": "adamw_fused"}, order_seed=5)
    ended = asyncio.run(run_trial(trial, run, Sides(waits), lambda trial: None))  # type: ignore[arg-type]
    assert ended.state == "done" and ended.clock == "contention_free"
    if ended.blocks < 20:
        pytest.skip("decided too early")
    assert ended.rhythm is not None
    assert (
        ended.rhythm.period_s == pytest.approx(PERIOD_S, rel=0.05) and ended.rhythm.clock == clock
    )
    assert msgspec.json.decode(msgspec.json.encode(ended), type=Trial).rhythm == ended.rhythm


class Job(Sides):
    """The same job for a sweep."""

    alive, last_started = True, None

    async def set_knobs(self, changes: Knobs, arm: int) -> KnobsSet:
        await self.switch_to(arm)
        return KnobsSet(0.0, 0, 0, changes)


@pytest.mark.parametrize(("waits", "clock"), [(False, "contention_free"), (True, "wall")])
def test_a_sweep_names_the_rhythm_of_its_job(
    waits: bool, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.randbits", lambda bits: 6)
    run = Run("1", "train.py", JOB, {"optim": "adamw", "precision": "fp32"}, "cpu")
    sweeper = JobSweeper(run, Job(waits), Device("cpu", "cpu"))  # type: ignore[arg-type]
    points: list[Knobs] = [
        {"optim": "adamw", "precision": precision} for precision in ("fp32", "bf16")
    ] + [{"optim": "adamw_fused", "precision": "fp32"}]
    sweep = asyncio.run(sweeper.run(points, 8, False, lambda sweep: None))
    assert sweep.clock == "contention_free" and sweep.rhythm is not None
    assert (
        sweep.rhythm.period_s == pytest.approx(PERIOD_S, rel=0.05) and sweep.rhythm.clock == clock
    )
    said = printed(sweep_report(sweep, ["optim", "precision"]), 200)
    assert "The rate of all settings rises and falls with a period of about 2.4 s" in said
    assert ("on the wall clock" in said) == waits


def test_times_out_of_order_are_no_rhythm() -> None:
    measured = blocks(1, 17, 4.0, 0.12, 0.02)
    assert rhythm_of(measured) is not None and rhythm_of(measured[::-1]) is None
    assert rhythm_of([block._replace(start_s=0.0, end_s=0.0) for block in measured]) is None


def test_the_report_says_it_in_one_sentence() -> None:
    trial = Trial(
        "1",
        "1",
        {"batch_size": 8},
        "done",
        Speedup(1.0, 0.9, 1.1),
        blocks=34,
        verdict="undecided",
        rhythm=Rhythm(4.03, 0.124),
    )
    sentence = (
        "The rate of both sides rises and falls with a period of about 4 s (±12 %): another process"
        " may have a rhythm."
    )
    assert rhythm_note(trial) == sentence
    assert sentence in printed(trial_report(trial, None)) and verdict_line(trial).endswith(
        f"reverted. {sentence}"
    )
    assert sentence in "".join(part for part, _ in paint_done(trial, 130, 4)[1])
    hidden = msgspec.structs.replace(trial, clock="contention_free")
    assert "about 4 s (±12 % on the wall clock): another process" in rhythm_note(hidden)
    calm = msgspec.structs.replace(trial, rhythm=None)
    assert rhythm_note(calm) == "" and "period" not in printed(
        trial_report(calm, None)
    ) + verdict_line(calm)
    assert b"rhythm" not in msgspec.json.encode(calm)


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise", ["independent, normal", "autocorrelated 0.5", "autocorrelated 0.8", "drift"]
)
def test_noise_is_hardly_ever_a_rhythm(noise: str) -> None:
    assert sum(simulated(noise, seed, 1.0).named for seed in range(150)) <= 3


@pytest.mark.parametrize(
    "noise", ["a rhythm of 4 blocks, sine", "a rhythm of 8 blocks, on and off"]
)
def test_a_strong_rhythm_is_named_in_most_trials(noise: str) -> None:
    assert sum(simulated(noise, seed, 1.0, deviation=0.10).named for seed in range(40)) >= 30


def test_a_rhythm_of_other_processes_shows_in_the_difference_of_the_clocks() -> None:
    """The work's own noise, which is on both clocks, is larger than what the other processes
    take."""
    named = 0
    for seed in range(10):
        free = blocks(seed, 17, 4.0, 0.0, 0.06)
        taken = blocks(seed, 17, 4.0, 0.04, 0.005)
        wall = [
            block._replace(log_rate=block.log_rate + wait.log_rate)
            for block, wait in zip(free, taken, strict=True)
        ]
        rhythm = first_rhythm({"contention_free": free, "wall": wall})
        named += (
            rhythm is not None and rhythm.clock == "wall" and abs(rhythm.period_s / 4.0 - 1) < 0.05
        )
    assert named == 10
