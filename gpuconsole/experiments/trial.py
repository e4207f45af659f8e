"""Runs a trial: switches between the two sides in paired blocks until the interval says enough."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from gpuconsole.experiments.blocks import BASELINE, CHANGED, BlockPlan, order, plans, rate
from gpuconsole.experiments.statistics import BETWEEN, MIN_PAIRS, exhausted, resolution, speedup, verdict
from gpuconsole.model.experiments.trial import HeldOutLoss, Method, Perplexity, Trial
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.run import Run, Step
from gpuconsole.processes.worker import WorkerGone, WorkerHandle

MAX_PAIRS = 60
START_S = 180.0
AGE_S = 15.0
"""Probes that a trial's second process has not come to by then are left out."""


class TrialLimits(msgspec.Struct, frozen=True):
    """When a trial that has not been decided ends, in seconds: of a change in place, of one through the loader, of one of a model server."""

    cap_s: float = 20.0
    loader_cap_s: float = 30.0
    serving_cap_s: float = 60.0


USUAL = TrialLimits()


class Sides(Protocol):
    """The two sides of a trial."""

    method: Method

    async def switch_to(self, arm: int) -> None:
        """Let `arm` run, and it alone. Raises TrialFailed, WorkerGone."""
        ...

    def worker(self, arm: int) -> WorkerHandle: ...


class TrialFailed(RuntimeError):
    """The change could not be put in force; the message is one line."""


class OneWorker:
    """Both sides in one process: hot knobs switched between two steps."""

    method: Method = "live ABBA"

    def __init__(self, worker: WorkerHandle, before: Knobs, changes: Knobs) -> None:
        self._worker = worker
        self._values = {BASELINE: {name: before[name] for name in changes}, CHANGED: changes}

    async def switch_to(self, arm: int) -> None:
        answer = await self._worker.set_knobs(self._values[arm], arm)
        if answer.error:
            raise TrialFailed(answer.error)

    def worker(self, arm: int) -> WorkerHandle:
        return self._worker


class TwoWorkers:
    """Each side in a process of its own, one paused while the other runs: for knobs that need a restart."""

    method: Method = "two workers ABBA"

    def __init__(self, baseline: WorkerHandle, changed: WorkerHandle) -> None:
        self._workers = {BASELINE: baseline, CHANGED: changed}

    async def switch_to(self, arm: int) -> None:
        other = CHANGED if arm == BASELINE else BASELINE
        await self._workers[other].pause()
        self._workers[arm].resume(arm)

    def worker(self, arm: int) -> WorkerHandle:
        return self._workers[arm]

    async def age_alike(self) -> None:
        """Put the changed side through the probes that the baseline has had: a process is some 2 % slower from then on, which would look like
        a merit of the other. What they find, and whether they apply with these knobs, is not asked. Raises WorkerGone.
        """
        baseline, changed = self._workers[BASELINE], self._workers[CHANGED]
        changed.resume(0)
        until = time.monotonic() + AGE_S
        for probe in dict.fromkeys(baseline.probed):
            if time.monotonic() < until:
                await changed.probe(probe)
        await changed.pause()


async def run_trial(trial: Trial, run: Run, sides: Sides, on_update: Callable[[Trial], None], limits: TrialLimits = USUAL) -> Trial:
    """`trial` of a change to `run`, brought to a verdict (state done), or failed with its reason. The sides are left as they were last.

    Run-queue delay is taken off on a CPU only, and not where the change is about that very delay (`num_threads`) or about
    other processes than the training thread (the loader, a model server).
    """
    of_side = plans(run.knobs, trial.changes, run.summary.phases_ratio or None)
    plan = of_side[CHANGED]
    contention_free = run.device == "cpu" and not plan.through_loader and not plan.serving and "num_threads" not in trial.changes
    ratios: list[float] = []
    wall_ratios: list[float] = []
    nulls: list[float] = []
    last: tuple[int, float] | None = None
    between = BETWEEN[sides.method]
    start = time.monotonic()
    cap_s = limits.serving_cap_s if plan.serving else limits.loader_cap_s if plan.through_loader else limits.cap_s
    trial = msgspec.structs.replace(
        trial,
        method=sides.method,
        between=between,
        clock="contention_free" if contention_free else "wall",
        changes_training=any(CATALOGUE[name].changes_training for name in trial.changes),
    )
    on_update(trial)
    decided = None
    try:
        for pair in itertools.islice(order(), MAX_PAIRS):
            blocks = {arm: await _block(sides, arm, of_side[arm]) for arm in pair}
            if not all(rate(block, False) > 0 for block in blocks.values()):
                raise TrialFailed("nothing was done in a whole block")
            rates = {arm: rate(block, contention_free) for arm, block in blocks.items()}
            ratios.append(math.log(rates[CHANGED] / rates[BASELINE]))
            if last is not None and last[0] == pair[0]:  # two blocks of one side in a row
                nulls.append(math.log(rates[pair[0]] / last[1]))
            last = pair[1], rates[pair[1]]
            wall_ratios.append(math.log(rate(blocks[CHANGED], False) / rate(blocks[BASELINE], False)))
            decided = verdict(ratios, nulls, between)
            trial = msgspec.structs.replace(
                trial,
                speedup=speedup(ratios, between),
                wall_speedup=speedup(wall_ratios, between),
                blocks=2 * len(ratios),
                log_ratios=tuple(ratios),
                null_log_ratios=tuple(nulls),
                resolution_ratio=resolution(nulls, len(ratios), between),
                elapsed_s=time.monotonic() - start,
            )
            on_update(trial)
            if decided or exhausted(ratios, nulls, between) or (trial.elapsed_s > cap_s and len(ratios) >= MIN_PAIRS):
                break
    except (TrialFailed, WorkerGone) as error:
        return msgspec.structs.replace(trial, state="failed", verdict="undecided", error=str(error), elapsed_s=time.monotonic() - start)
    return msgspec.structs.replace(trial, state="done", verdict=decided or "undecided")


async def _block(sides: Sides, arm: int, plan: BlockPlan) -> list[Step]:
    """The counted steps of one block of `arm`, after the steps in which it settles."""
    worker = sides.worker(arm)
    worker.trial_steps.clear()
    await sides.switch_to(arm)
    while True:
        counted = [step for step in worker.trial_steps if step.arm == arm and step.kind == 0]
        if plan.complete(counted):
            return list(plan.trimmed(counted))
        await worker.next_steps()


async def with_quality(trial: Trial, sides: Sides) -> Trial:
    """`trial` with what both sides make of a fixed text, or of held-out batches, where the change alters what is computed and it can tell."""
    if trial.state != "done":
        return trial
    knobs = [CATALOGUE[name] for name in trial.changes]
    if any(knob.changes_output for knob in knobs):
        return await _with_perplexity(trial, sides)
    if any(knob.changes_numerics for knob in knobs) and sides.method == "live ABBA":  # two workers have trained apart
        return await _with_loss(trial, sides)
    return trial


async def _with_perplexity(trial: Trial, sides: Sides) -> Trial:
    answers = [await sides.worker(arm).probe("perplexity") for arm in (BASELINE, CHANGED)]
    values = [answer.signals["quality.perplexity"].value for answer in answers if "quality.perplexity" in answer.signals]
    if len(values) < 2:
        return msgspec.structs.replace(trial, error=f"perplexity not measured: {next((one.error for one in answers if one.error), '')}")
    return msgspec.structs.replace(trial, perplexity=Perplexity(*values))


async def _with_loss(trial: Trial, sides: Sides) -> Trial:
    """Without the change, with it, without it again: the few steps in between train, and that is not the change's doing."""
    losses = []
    for arm in (BASELINE, CHANGED, BASELINE):
        await sides.switch_to(arm)
        answer = await sides.worker(arm).probe("held_out_loss")
        if "quality.held_out_loss" not in answer.signals:
            return msgspec.structs.replace(trial, error=f"held-out loss not measured: {answer.error}", checked=False)
        losses.append(answer.signals["quality.held_out_loss"].value)
    first, changed, second = losses
    return msgspec.structs.replace(trial, held_out_loss=HeldOutLoss((first + second) / 2, changed, abs(first - second)))
