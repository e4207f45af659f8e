"""Watches a kept change for a minute: a trial of a few seconds sees no stall that comes once in hundreds of steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from gpuconsole.experiments.runs import RunRate, change_of, run_rate
from gpuconsole.experiments.statistics import run_blocks
from gpuconsole.model import units
from gpuconsole.model.experiments import Trial
from gpuconsole.model.run import Run, Step
from gpuconsole.session.figures.account import runq_ratio
from gpuconsole.session.figures.rate import Block
from gpuconsole.session.run import RunRecord

WATCHED = frozenset(
    [
        "torch_compile",
        "compile_dynamic",
        "cudnn_benchmark",
        "float8_linear",
        "pytorch_alloc_conf",
        "malloc_mmap_threshold_kb",
        "malloc_trim_threshold_mb",
        "batch_size",
    ]
)
"""Knobs whose change may compile or tune again for a new shape, or fragment memory."""
WATCH_S = 60.0
EVERY_S = 1.0


def rate_of(run: Run, steps: Sequence[Step]) -> RunRate | None:
    """What counts of `steps`; on a CPU without the run-queue delay of the training thread, as in the gate."""
    waited = min(0.99, runq_ratio(steps) or 0.0) if run.device == "cpu" else 0.0
    return run_rate([Block(block.rate / (1 - waited), block.seconds) for block in run_blocks(steps)])


def judged(trial: Trial, before: RunRate | None, after: RunRate | None) -> Trial:
    """`trial` with its verdict withdrawn where the rate after it, over the rate before it, is below the interval that the trial measured: with
    the noise between two equal runs, because these rates are not measured in turn."""
    if trial.speedup is None or before is None or after is None:
        return trial
    change = change_of([before], after)
    estimate, low, high = (1 + value for value in (change.estimate, change.low, change.high))
    if high >= trial.speedup.low:
        return trial
    return msgspec.structs.replace(
        trial, verdict="undecided", reason=f"{units.measured(estimate, low, high)} in the minute after it was kept"
    )


async def watch(trial: Trial, before: RunRate | None, record: Callable[[], RunRecord | None]) -> Trial:
    """`trial` as it is after WATCH_S of steps of the run that begins with its change; unchanged where that run ends before. `record`: of the current
    run."""
    mine = record()
    while mine is not None and mine is record() and mine.closed_t is None:
        steps = list(mine.steps)
        if sum(step.wall_s for step in steps) >= WATCH_S:
            return judged(trial, before, rate_of(mine.run, steps))
        await asyncio.sleep(EVERY_S)
    return trial
