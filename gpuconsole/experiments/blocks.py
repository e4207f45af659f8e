"""Paired blocks: in which order the two sides of a trial run, how long, and what a block is worth."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.run import Step

BASELINE, CHANGED = 1, 2
"""The arms that a trial's steps are marked with; 0 is an ordinary step."""
MIN_STEPS = 5
MIN_BLOCK_S = 0.35
MIN_LOADER_BLOCK_S = 0.8
MIN_SERVING_BLOCK_S = 2.0
MAX_BLOCK_S = 2.5
MAX_PERIOD = 40
PERIOD_KNOBS = {"log_every": "logging", "save_every": "checkpoint", "eval_every": "eval"}
"""What happens every so many steps, and the phase that it takes its time in."""
COST_KNOBS = {"logging": {"log_every", "log_gradients"}, "checkpoint": {"save_every"}, "eval": {"eval_every", "eval_batch_size"}}
"""What decides the share of each of those phases."""
RARER = 10
"""What happens so many times more rarely on one side need not happen in that side's blocks: if it never did, the gain would be overstated by a
tenth, and over a trial it does now and then."""
NEGLIGIBLE = 0.01
"""Of step time: what happens now and then and costs less need not happen equally often in both blocks of a pair."""


def order() -> Iterator[tuple[int, int]]:
    """Pairs of arms for ever: A B, B A, A B, ... so that drift cancels."""
    while True:
        yield BASELINE, CHANGED
        yield CHANGED, BASELINE


class BlockPlan:
    """How long a block of one side must be: whole periods of what happens every so many steps there, and time to mean something."""

    def __init__(
        self, knobs: Knobs, changes: Collection[str], phases_ratio: Mapping[str, float] | None = None, others: Knobs | None = None
    ) -> None:
        """`knobs` as they are on this side, `others` as on the other, `changes`: the names of those that differ.

        `phases_ratio`: each phase's share of step time before the trial, where it is known.
        """
        self.through_loader = any(CATALOGUE[name].loader for name in changes)
        self.serving = any(CATALOGUE[name].serving for name in changes)
        self.min_s = MIN_SERVING_BLOCK_S if self.serving else MIN_LOADER_BLOCK_S if self.through_loader else MIN_BLOCK_S
        shares = phases_ratio or {}
        unknown = {phase for phase, of_phase in COST_KNOBS.items() if not of_phase.isdisjoint(changes)}  # from now on
        weighs = [name for name, phase in PERIOD_KNOBS.items() if phase in unknown or shares.get(phase, 1.0) >= NEGLIGIBLE]
        every = {name: int(knobs.get(name, 0)) for name in weighs}
        rare = {name for name in weighs if every[name] >= RARER * int((others or knobs).get(name, 0)) > 0}
        periods = [every[name] for name in weighs if 0 < every[name] <= MAX_PERIOD and name not in rare]
        period = math.lcm(*periods)
        self.period = period if period <= MAX_PERIOD else max(periods)

    def complete(self, steps: Sequence[Step]) -> bool:
        """Whether the counted `steps` of a block suffice."""
        seconds = sum(step.wall_s for step in steps)
        long_enough = len(steps) >= MIN_STEPS and seconds >= self.min_s
        return long_enough and (len(steps) >= self.period or seconds >= MAX_BLOCK_S)

    def least_s(self, step_s: float) -> float:
        """Seconds of the shortest block that is complete, of steps that take `step_s`."""
        return max(self.min_s, MIN_STEPS * step_s, min(MAX_BLOCK_S, self.period * step_s))

    def trimmed(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Whole periods only, counted from the end."""
        whole = len(steps) // self.period * self.period
        return steps[-whole:] if whole else steps


def plans(knobs: Knobs, changes: Knobs, phases_ratio: Mapping[str, float] | None = None) -> dict[int, BlockPlan]:
    """Of both sides of a trial of `changes` to `knobs`, by arm."""
    sides = {BASELINE: knobs, CHANGED: {**knobs, **changes}}
    other = {BASELINE: sides[CHANGED], CHANGED: knobs}
    return {arm: BlockPlan(values, changes, phases_ratio, other[arm]) for arm, values in sides.items()}


def rate(steps: Sequence[Step], contention_free: bool) -> float:
    """Work per second of a block: tokens where there are any, else samples. With `contention_free`, run-queue delay is taken off."""
    work = sum(step.tokens or step.samples for step in steps)
    seconds = sum(step.wall_s for step in steps)
    if contention_free:
        seconds -= sum(sum(step.runq or ()) for step in steps)
    return work / max(seconds, 1e-9)
