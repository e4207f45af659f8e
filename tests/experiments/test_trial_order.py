"""The random order and lengths of the blocks of a trial: they follow from the seed, and a rhythm of
the machine is no effect."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
from typing import Any

import msgspec
import pytest

from benchmarks.trial_statistics import trial as simulated
from gpuconsole.experiments.block_order import MAX_STRETCH, Block, Exposure, in_turn, order
from gpuconsole.experiments.gate import decide
from gpuconsole.experiments.runs import RunRate, ratio_of
from gpuconsole.experiments.statistics import BASELINE, CHANGED, MIN_PAIRS, Pairs, other_variant
from gpuconsole.experiments.sweep import rounds
from gpuconsole.experiments.trial import run_trial
from gpuconsole.model.experiments import Trial
from gpuconsole.model.run import PHASES, Run, Step

STEP_S = 0.01


class Sides:
    """A job in which both sides make steps of STEP_S at once. `blocks`: the arm and the number of
    steps of each block."""

    method = "live ABBA"

    def __init__(self) -> None:
        self.trial_steps: list[Step] = []
        self.blocks: list[list[int]] = []

    async def switch_to(self, arm: int) -> None:
        self.trial_steps.clear()
        self.blocks.append([arm, 0])

    def worker(self, arm: int) -> Any:
        return self

    async def next_steps(self) -> None:
        phases = (STEP_S, *[0.0] * (len(PHASES) - 1))
        # without noise the first pairs would decide
        seconds = STEP_S * (1 + 0.1 * (self.blocks[-1][1] % 2))
        self.trial_steps.append(Step(0, 0.0, seconds, 4, 0, phases, phases, arm=self.blocks[-1][0]))
        self.blocks[-1][1] += 1


def measured(seed: int | None) -> tuple[Trial, list[list[int]]]:
    sides = Sides()
    run = Run("1", "s", "training.gpt", {"optim": "adamw"}, "gpu:0")
    trial = Trial("1", "1", {"optim": "adamw_fused"}, order_seed=seed)
    return asyncio.run(run_trial(trial, run, sides, lambda trial: None)), sides.blocks  # type: ignore[arg-type]


def test_the_order_and_the_lengths_follow_from_the_seed() -> None:
    pairs = list(itertools.islice(order(7), 200))
    assert pairs == list(itertools.islice(order(7), 200)) != list(itertools.islice(order(8), 200))
    assert all({first.arm, second.arm} == {BASELINE, CHANGED} for first, second in pairs)
    stretches = [block.stretch for pair in pairs for block in pair]
    assert 1.0 <= min(stretches) < 1.1 and 0.9 * MAX_STRETCH < max(stretches) <= MAX_STRETCH
    assert 80 < sum(first.arm == BASELINE for first, _ in pairs) < 120


def test_no_rhythm_looks_like_an_effect_in_the_pairs_that_are_drawn() -> None:
    """At every moment at which a verdict is possible; by a coin alone, five in six of the draws of
    four pairs are in danger."""
    dangers = []
    for seed in range(60):
        pairs = list(itertools.islice(order(seed), 12))
        dangers += [Exposure().after(pairs[:count]).danger for count in range(MIN_PAIRS, 13)]
    assert sum(danger >= 1 for danger in dangers) < 0.1 * len(dangers)
    in_step = [
        (Block(first, 1.0), Block(other_variant(first), 1.0)) for first in (BASELINE, CHANGED) * 2
    ]
    assert Exposure().after(in_step).danger > 2


def test_either_arm_may_come_first_in_every_pair() -> None:
    firsts = [
        "".join(str(first.arm) for first, _ in itertools.islice(order(seed), 4))
        for seed in range(300)
    ]
    assert all(100 < sum(orders[place] == "1" for orders in firsts) < 200 for place in range(4))
    assert len(set(firsts)) > 8


def called_slower(firsts: list[int], period: float, chance: random.Random) -> bool:
    """Whether the gate calls equal programs a regression: runs in these pairs, and a rhythm of
    `period` runs that moves the rate by 5 %."""
    phase, runs = chance.uniform(0, math.tau), {BASELINE: [], CHANGED: []}  # type: ignore[var-annotated]
    for n, arm in enumerate(arm for one in firsts for arm in (one, other_variant(one))):
        rate = 0.05 * math.sin(math.tau * n / period + phase) + chance.gauss(0, 0.005)
        runs[arm].append(RunRate(rate, 0.002, "host", 30.0 * n, 30.0 * n + 20))
    return decide(ratio_of(runs[BASELINE], runs[CHANGED]), 0.97) == "regression"


@pytest.mark.parametrize("period", [2.0, 4.0])
@pytest.mark.parametrize("pairs", [3, 5])
def test_a_rhythm_makes_no_regression_of_a_gate(pairs: int, period: float) -> None:
    """In the order A B B A, a rhythm of four runs made one in ten unchanged jobs a regression; a
    coin for each pair does the same with a rhythm of two runs."""
    chance = random.Random(1)
    orders = [in_turn(pairs) for _ in range(200)]
    assert len(set(map(tuple, orders))) >= 4
    assert all(abs(firsts.count(BASELINE) - firsts.count(CHANGED)) == 1 for firsts in orders)
    assert sum(called_slower(firsts, period, chance) for firsts in orders) <= 5
    fixed = [BASELINE if n % 2 else CHANGED for n in range(pairs)]
    if period == 4.0:
        assert sum(called_slower(fixed, period, chance) for _ in orders) > 8


def test_the_time_of_the_first_change_is_not_charged_to_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch.compile may work for minutes then: the trial would end with its fewest blocks."""
    usual, blocks = measured(5)
    clock, plain = [0.0], Sides.switch_to

    async def switch_to(self: Sides, arm: int) -> None:
        if arm == CHANGED and clock[0] == 0.0:
            clock[0] = 180.0
        await plain(self, arm)

    monkeypatch.setattr(Sides, "switch_to", switch_to)
    monkeypatch.setattr("gpuconsole.experiments.trial.time.monotonic", lambda: clock[0])
    slow, blocks_of_slow = measured(5)
    assert blocks_of_slow == blocks
    assert slow.elapsed_s < 1.0 and slow.blocks == usual.blocks


def test_a_trial_measures_the_blocks_of_its_seed_and_its_record_keeps_the_seed() -> None:
    trial, blocks = measured(None)
    assert trial.state == "done" and trial.order_seed is not None
    planned = list(
        itertools.chain.from_iterable(itertools.islice(order(trial.order_seed), len(blocks) // 2))
    )
    assert [arm for arm, _ in blocks] == [block.arm for block in planned]
    steps = [count for _, count in blocks]
    longest, shortest = (
        choose(range(len(planned)), key=lambda n: planned[n].stretch) for choose in (max, min)
    )
    assert steps[longest] > steps[shortest]
    kept = msgspec.json.decode(msgspec.json.encode(trial), type=Trial)
    assert measured(kept.order_seed)[1] == blocks, "the record is enough to repeat the order"
    assert measured(kept.order_seed + 1 if kept.order_seed is not None else 0)[1] != blocks


def test_records_of_earlier_versions_have_no_seed() -> None:
    assert (
        msgspec.convert({"id": "1", "baseline_run": "1", "changes": {}}, Trial).order_seed is None
    )


def test_every_pair_after_the_first_compares_two_blocks_of_one_side() -> None:
    pairs = Pairs()
    pairs.add(BASELINE, {BASELINE: 1.0, CHANGED: 2.0})
    pairs.add(BASELINE, {BASELINE: 1.25, CHANGED: 2.0})  # A B, A B: the block before the last
    pairs.add(CHANGED, {BASELINE: 1.0, CHANGED: 2.5})  # A B, B A: the last block
    before, after = (
        [math.exp(-rate) for rate in rates] for rates in ((1.0, 1.25, 1.0), (2.0, 2.0, 2.5))
    )
    assert statistics.fmean(pairs.log_ratios) == pytest.approx(
        math.log(sum(before) / sum(after))
    ), "the ratio of the mean times"
    assert pairs.log_ratios == pytest.approx([1.0, 0.75, 1.5], abs=0.1)
    assert pairs.null_log_ratios == pytest.approx([0.25, 0.5], abs=0.05)


def test_the_rounds_of_a_sweep_follow_from_the_seed() -> None:
    made = list(rounds(5, 20, 3))
    assert made == list(rounds(5, 20, 3)) != list(rounds(5, 20, 4))
    orders = [tuple(index for index, _ in points) for points in made]
    assert all(sorted(points) == [0, 1, 2, 3, 4] for points in orders) and len(set(orders)) > 10
    assert all(1.0 <= stretch <= MAX_STRETCH for points in made for _, stretch in points)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["sine", "on and off"])
def test_a_rhythm_of_four_blocks_is_no_effect(shape: str) -> None:
    """300 trials without an effect. In the fixed order A B, B A the same rhythm is an effect."""
    noise = f"a rhythm of 4 blocks, {shape}"
    decided = [simulated(noise, seed, 1.0).verdict for seed in range(300)]
    assert decided.count("win") < 3 and decided.count("worse") < 3
    assert sum(simulated(noise, seed, 1.0, fixed=True).verdict == "win" for seed in range(100)) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise", ["a rhythm of 3 blocks, sine", "a rhythm of 3.7 blocks, on and off"]
)
def test_a_strong_rhythm_is_no_effect(noise: str) -> None:
    """A rhythm of 10 %, in 400 trials without an effect: by a coin alone, the first four pairs of
    1.5 % of the trials were in step with it."""
    ended = [simulated(noise, seed, 1.0, deviation=0.10) for seed in range(400)]
    assert sum(trial.verdict in ("win", "worse") for trial in ended) <= 2
    assert sum(trial.covered for trial in ended) >= 390


def test_real_effects_are_found_in_a_rhythm() -> None:
    assert (
        sum(
            simulated("a rhythm of 4 blocks, sine", seed, 1.1).verdict == "win"
            for seed in range(50)
        )
        >= 48
    )


def test_reports_name_the_order_that_a_trial_had() -> None:
    trial = Trial("1", "1", {"batch_size": 8}, "done")
    assert trial.way == "live, fixed order", "a file of an earlier version"
    assert msgspec.structs.replace(trial, order_seed=7).way == "live, random order"
