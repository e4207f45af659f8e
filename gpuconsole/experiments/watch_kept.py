"""Watches a kept change for a minute, and says whether its gain is still there.

A trial of a few seconds sees no heat, no gain that fades, no stall that comes once in hundreds of
steps, and no evaluation of the next hour. So the minute after the change was kept is compared with
the steady steps before the trial, in the same process.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from gpuconsole.experiments.runs import RunRate, of_blocks
from gpuconsole.experiments.statistics import (
    MIN_RUN_BLOCKS,
    MINIMUM_EFFECT,
    one_step,
    run_blocks,
    student,
    work_of_step,
)
from gpuconsole.model import units
from gpuconsole.model.experiments import Trial
from gpuconsole.model.run import Step
from gpuconsole.session.figures.breakdown import runq_ratio
from gpuconsole.session.figures.rate import contention_free
from gpuconsole.session.run import RunRecord

WATCH_S = 60.0
THIRDS = 3
MIN_WATCHED_S = 10.0
"""Seconds of steps after the change that can withdraw a verdict, where the run ends earlier."""
EVERY_S = 1.0


class ClockRates(NamedTuple):
    """The rate of steps on the wall clock, and without the run-queue delay of the training
    thread."""

    wall: RunRate
    free: RunRate


def rates_of(steps: Sequence[Step], by_steps: bool) -> ClockRates | None:
    """Return the rates of `steps` with their evaluations and checkpoints; None for too few steps.
    `by_steps`: see `Trial`."""
    wall = of_blocks(run_blocks(steps, one_step if by_steps else work_of_step))
    if wall is None:
        return None
    per_s = contention_free(math.exp(wall.log_rate), runq_ratio(steps))
    return ClockRates(wall, wall._replace(log_rate=math.log(per_s)))


def change_of(before: RunRate, after: RunRate) -> tuple[float, float, float]:
    """Return the log ratio of two rates of one process with its 95 % interval: estimate, low,
    high. A difference below MINIMUM_EFFECT counts as none."""
    middle = after.log_rate - before.log_rate
    half = student(MIN_RUN_BLOCKS) * math.hypot(before.error, after.error) + MINIMUM_EFFECT
    return middle, middle - half, middle + half


def judged(trial: Trial, before: Sequence[Step], after: Sequence[Step]) -> Trial:
    """Return `trial` as the steps after its change show it: `worse` where the run is slower than
    before the trial, on both clocks; `undecided` where the gain is below the interval of the trial.
    Unchanged where the gain is still there, or where the rates are not known.

    All steps count, for stalls and evaluations, and so does the last third of them alone: a gain
    that heat takes away is there at first.
    """
    was = rates_of(before, trial.by_steps)
    if trial.speedup is None or was is None:
        return trial
    lowest = min(
        (
            max(change_of(*clock) for clock in zip(was, now, strict=True))
            for steps in (after, after[-len(after) // THIRDS :])
            if (now := rates_of(steps, trial.by_steps)) is not None
        ),
        key=lambda change: change[2],
        default=None,
    )
    if lowest is None or lowest[2] >= math.log(trial.speedup.low):
        return trial
    return msgspec.structs.replace(
        trial,
        verdict="worse" if lowest[2] < 0 else "undecided",
        reason=(
            f"{units.measured(*map(math.exp, lowest))} in the minute after the change was kept"
        ),
    )


async def watch(
    trial: Trial, before: Sequence[Step], record: Callable[[], RunRecord | None]
) -> Trial:
    """Wait for WATCH_S of steps of the run that begins with the change of `trial`, or for its end.
    Return `trial` as `judged` by these steps; unchanged if they are few, or if other settings are
    kept meanwhile. `record`: returns the record of the current run."""
    watched = record()
    while watched is not None and watched is record():
        steps = list(watched.steps)
        seconds = sum(step.wall_s for step in steps)
        over = watched.closed_t is not None
        if seconds >= (MIN_WATCHED_S if over else WATCH_S):
            return judged(trial, before, steps)
        if over:
            break
        await asyncio.sleep(EVERY_S)
    return trial
