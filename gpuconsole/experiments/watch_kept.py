"""Watches a kept change for a minute: a trial of a few seconds sees no stall that comes once in hundreds of steps."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import msgspec

from gpuconsole.experiments.runs import RunRate, of_blocks
from gpuconsole.experiments.statistics import ALPHA, RUN_TO_RUN, USUAL_RUNS, run_blocks, student_quantile
from gpuconsole.model import units
from gpuconsole.model.experiments import Trial
from gpuconsole.model.run import Run, Step
from gpuconsole.session.figures.account import runq_ratio
from gpuconsole.session.figures.rate import contention_free
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
"""Knobs whose change can cause stalls later: by a new compilation or a new kernel tuning for each new input shape, or by memory fragmentation."""
WATCH_S = 60.0
EVERY_S = 1.0


def rate_of(run: Run, steps: Sequence[Step]) -> RunRate | None:
    """Return the rate of `steps`. On a CPU, the rate leaves out the run-queue delay of the training thread, as in the gate."""
    rate = of_blocks(run_blocks(steps))
    waited = runq_ratio(steps) if run.device == "cpu" else None
    return rate and rate._replace(log_rate=math.log(contention_free(math.exp(rate.log_rate), waited)))


def judged(trial: Trial, before: RunRate | None, after: RunRate | None) -> Trial:
    """Withdraw the verdict of `trial` if the present gain is below the interval that the trial measured. The present gain is the rate after the trial over
    the rate before it. Its interval contains the noise between two equal runs, because these rates are not measured in turn."""
    if trial.speedup is None or before is None or after is None:
        return trial
    middle = after.log_rate - before.log_rate
    half = student_quantile(USUAL_RUNS, ALPHA) * math.sqrt(2 * RUN_TO_RUN**2 + before.error**2 + after.error**2)
    estimate, low, high = map(math.exp, (middle, middle - half, middle + half))
    if high >= trial.speedup.low:
        return trial
    return msgspec.structs.replace(
        trial, verdict="undecided", reason=f"{units.measured(estimate, low, high)} in the minute after the change was kept"
    )


async def watch(trial: Trial, before: RunRate | None, record: Callable[[], RunRecord | None]) -> Trial:
    """Wait for WATCH_S of steps of the run that begins with the change of `trial`. Return `trial` as `judged` by these steps; unchanged if the run ends
    earlier. `record`: returns the record of the current run."""
    watched = record()
    while watched is not None and watched is record() and watched.closed_t is None:
        steps = list(watched.steps)
        if sum(step.wall_s for step in steps) >= WATCH_S:
            return judged(trial, before, rate_of(watched.run, steps))
        await asyncio.sleep(EVERY_S)
    return trial
