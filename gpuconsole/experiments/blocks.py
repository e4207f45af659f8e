"""Blocks of steps: their order and length in a trial, and the rate of work in a block."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.run import Step

BASELINE, CHANGED = 1, 2
"""The arms that mark the steps of a trial; 0 is an ordinary step."""
MIN_STEPS = 5
MIN_BLOCK_S = 0.35
MIN_LOADER_BLOCK_S = 0.8
MIN_SERVING_BLOCK_S = 2.0
MAX_BLOCK_S = 2.5
MAX_PERIOD = 40
PERIOD_KNOBS = {"log_every": "logging", "save_every": "checkpoint", "eval_every": "eval"}
"""Knobs that set the period of an event in steps, and the phase in which the event takes its time."""
COST_KNOBS = {"logging": {"log_every", "log_gradients"}, "checkpoint": {"save_every"}, "eval": {"eval_every", "eval_batch_size"}}
"""Knobs that set the share of each of these phases."""
RARER = 10
"""If an event is this many times rarer on one side, a block of that side need not contain the event. Without any such event the gain
would be overstated by a tenth at most, and some blocks do contain the event."""
NEGLIGIBLE = 0.01
"""Share of step time. An event with a smaller share need not happen equally often in both blocks of a pair."""
RUN_BLOCK_S = 1.0
MIN_RUN_BLOCK_S = 0.25
FEW_RUN_BLOCKS = 12
"""A run too short for this many blocks of RUN_BLOCK_S is cut into shorter blocks."""
MOST_RUN_BLOCKS = 60


def order() -> Iterator[tuple[int, int]]:
    """The endless order of arms in pairs: A B, B A, A B, ... This order cancels drift."""
    while True:
        yield BASELINE, CHANGED
        yield CHANGED, BASELINE


class BlockPlan:
    """The required length of a block of one side: whole periods of the events on that side, and a minimum time."""

    def __init__(
        self,
        knobs: Knobs,
        changes: Collection[str],
        phases_ratio: Mapping[str, float] | None = None,
        others: Knobs | None = None,
        *,
        of_job: bool = False,
    ) -> None:
        """`knobs` are the values on this side, `others` the values on the other side, `changes` the names of the knobs that differ.

        `phases_ratio`: the share of each phase in the step time before the trial, where it is known. `of_job`: the steps are those of the
        user's own program, which does not mark its first steps after a change.
        """
        self.through_loader = any(CATALOGUE[name].loader for name in changes)
        self.serving = any(CATALOGUE[name].serving for name in changes)
        self.min_s = MIN_SERVING_BLOCK_S if self.serving else MIN_LOADER_BLOCK_S if self.through_loader else MIN_BLOCK_S
        shares = phases_ratio or {}
        unknown = {phase for phase, of_phase in COST_KNOBS.items() if not of_phase.isdisjoint(changes)}  # the change alters these shares
        weighs = [name for name, phase in PERIOD_KNOBS.items() if phase in unknown or shares.get(phase, 1.0) >= NEGLIGIBLE]
        every = {name: int(knobs.get(name, 0)) for name in weighs}
        rare = {name for name in weighs if every[name] >= RARER * int((others or knobs).get(name, 0)) > 0}
        periods = [every[name] for name in weighs if 0 < every[name] <= MAX_PERIOD and name not in rare]
        period = math.lcm(*periods)
        self.period = period if period <= MAX_PERIOD else max(periods)

        self.settling = settling_steps(knobs, self.through_loader) if of_job else 0
        """The first steps of a block that do not count."""

    def complete(self, steps: Sequence[Step]) -> bool:
        """Whether the block has enough counted `steps`."""
        seconds = sum(step.wall_s for step in steps)
        long_enough = len(steps) >= MIN_STEPS and seconds >= self.min_s
        return long_enough and (len(steps) >= self.period or seconds >= MAX_BLOCK_S)

    def least_s(self, step_s: float) -> float:
        """Seconds of the shortest complete block, where a step takes `step_s`."""
        return max(self.min_s, MIN_STEPS * step_s, min(MAX_BLOCK_S, self.period * step_s))

    def trimmed(self, steps: Sequence[Step]) -> Sequence[Step]:
        """The last steps of the block that form whole periods."""
        whole = len(steps) // self.period * self.period
        return steps[-whole:] if whole else steps


def settling_steps(knobs: Knobs, through_loader: bool) -> int:
    """Steps after a change that show the queue of a loader that was idle, not its rate; one step after other changes."""
    workers = int(knobs.get("num_workers", 0)) if through_loader else 0
    return workers * int(knobs.get("prefetch_factor", 2)) + 2 if workers else 1


def plans(knobs: Knobs, changes: Knobs, phases_ratio: Mapping[str, float] | None = None, *, of_job: bool = False) -> dict[int, BlockPlan]:
    """The plans of both sides of a trial of `changes` to `knobs`, by arm. `of_job`: see `BlockPlan`."""
    sides = {BASELINE: knobs, CHANGED: {**knobs, **changes}}
    other = {BASELINE: sides[CHANGED], CHANGED: knobs}
    return {arm: BlockPlan(values, changes, phases_ratio, other[arm], of_job=of_job) for arm, values in sides.items()}


def rate(steps: Sequence[Step], contention_free: bool) -> float:
    """Work per second of a block, in tokens if steps have tokens, otherwise in samples. `contention_free` subtracts the run-queue delay."""
    work = sum(step.tokens or step.samples for step in steps)
    seconds = sum(step.wall_s for step in steps)
    if contention_free:
        seconds -= sum(sum(step.runq or ()) for step in steps)
    return work / max(seconds, 1e-9)


def block_rates(steps: Sequence[Step], contention_free: bool = False) -> tuple[float, ...]:
    """Work per second in successive blocks of a run: about a second each, at least MIN_STEPS steps, at most MOST_RUN_BLOCKS blocks.

    Run-queue delay is read on some steps only. With `contention_free`, every block contains such steps, and their share of delay is
    subtracted from the whole block.
    """
    total = sum(step.wall_s for step in steps)
    block_s = max(MIN_RUN_BLOCK_S, min(RUN_BLOCK_S, total / FEW_RUN_BLOCKS), total / MOST_RUN_BLOCKS)
    found, block, seconds, sampled = [], list[Step](), 0.0, False
    for step in steps:
        block.append(step)
        seconds += step.wall_s
        sampled = sampled or step.runq is not None
        if seconds >= block_s and len(block) >= MIN_STEPS and (sampled or not contention_free):
            found.append(rate(block, False) / (1 - _delay_ratio(block) if contention_free else 1.0))
            block, seconds, sampled = [], 0.0, False
    return tuple(found)


def _delay_ratio(block: Sequence[Step]) -> float:
    """Run-queue delay over wall time, from the steps on which the delay was read; below 1."""
    sampled = [step for step in block if step.runq is not None]
    return min(0.99, sum(sum(step.runq or ()) for step in sampled) / max(sum(step.wall_s for step in sampled), 1e-9))
