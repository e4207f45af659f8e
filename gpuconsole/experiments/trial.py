"""Runs a trial: measures a change in paired blocks until the interval decides, and leaves the
better side running."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import msgspec

from gpuconsole.engine.children.worker import WorkerGone, WorkerHandle
from gpuconsole.engine.devices import lacks_memory
from gpuconsole.engine.run_control import RunControl
from gpuconsole.experiments.block_order import MEAN_STRETCH, Block, order
from gpuconsole.experiments.blocks import (
    CHANCE,
    CHANCE_OF_MORE,
    THIRDS,
    Events,
    MeasuredPairs,
    confirms,
    first_third,
    last_third,
    middle_third,
    whole,
)
from gpuconsole.experiments.statistics import (
    BASELINE,
    BETWEEN,
    CHANGED,
    MIN_PAIRS,
    NO_WORK,
    exhausted,
    one_step,
    other_variant,
    pairs_needed,
    plans,
    rate,
    resolution,
    speedup,
    student,
    verdict,
    work_in,
    work_of_step,
)
from gpuconsole.experiments.steps import Lengths, NextBlock, StepNoise
from gpuconsole.model import units
from gpuconsole.model.experiments import (
    NOT_FINITE,
    Forecast,
    HeldOutLoss,
    Method,
    Perplexity,
    Trial,
    Verdict,
)
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs, describe_changes, show
from gpuconsole.model.run import Run, Step
from gpuconsole.model.serving import settle_s
from gpuconsole.session.api import SessionError
from gpuconsole.session.figures.rate import Work

MAX_PAIRS = 60
MAX_OF_LIMIT = 2.0
"""A trial takes at most this multiple of its limit, where it waits for an evaluation or a
checkpoint, or where it has fewer than MIN_PAIRS pairs."""
JOB_ENDED = "the job ended before the trial was decided"
"""The error of such a trial."""
AGE_S = 15.0
"""Maximum time in seconds for probes in the second process of a trial. Probes that remain after
this time are skipped."""


class TrialLimits(msgspec.Struct, frozen=True):
    """Maximum duration of a trial in seconds, for four kinds of change: a live change, a dataloader
    change, a model server change, and a change under the traffic of other clients. The trial ends
    as undecided."""

    cap_s: float = 20.0
    loader_cap_s: float = 30.0
    serving_cap_s: float = 60.0
    traffic_cap_s: float = 300.0


USUAL = TrialLimits()


class Variants(Protocol):
    """The two sides of a trial."""

    method: Method

    async def switch_to(self, arm: int) -> None:
        """Run only the side `arm`, and pause the other side; forget the steps of earlier blocks.
        Raises TrialFailed, WorkerGone."""
        ...

    def worker(self, arm: int) -> WorkerHandle: ...


class TrialFailed(RuntimeError):
    """The change could not be applied; the message is one line."""


class LossNotFinite(RuntimeError):
    """A side of a trial has a loss that is NaN or infinite, or no loss any more, where the loss was
    finite before."""


class OneWorker:
    """Both sides in one process: live knobs are switched between two steps."""

    method: Method = "live ABBA"

    def __init__(self, worker: WorkerHandle, before: Knobs, changes: Knobs) -> None:
        self._worker = worker
        self._values = {BASELINE: {name: before[name] for name in changes}, CHANGED: changes}

    async def switch_to(self, arm: int) -> None:
        self._worker.trial_steps.clear()
        answer = await self._worker.set_knobs(self._values[arm], arm)
        if answer.error:
            raise TrialFailed(answer.error)

    def worker(self, arm: int) -> WorkerHandle:
        return self._worker


class TwoWorkers:
    """Each side in its own process, one paused while the other runs: for knobs that need a
    restart."""

    method: Method = "two workers ABBA"

    def __init__(self, baseline: WorkerHandle, changed: WorkerHandle) -> None:
        self._workers = {BASELINE: baseline, CHANGED: changed}

    async def switch_to(self, arm: int) -> None:
        self._workers[arm].trial_steps.clear()
        await self._workers[other_variant(arm)].pause()
        self._workers[arm].resume(arm)

    def worker(self, arm: int) -> WorkerHandle:
        return self._workers[arm]

    async def age_alike(self) -> None:
        """Run the probes of the baseline on the changed side too; their results are not used.
        Raises WorkerGone.

        A process is about 2 % slower after its probes. Without this, the changed side would have
        that advantage.
        """
        baseline, changed = self._workers[BASELINE], self._workers[CHANGED]
        changed.resume(0)
        until = time.monotonic() + AGE_S
        for probe in dict.fromkeys(baseline.probed):
            if time.monotonic() < until:
                await changed.probe(probe)
        await changed.pause()


@dataclass(frozen=True)
class Outcome:
    """The finished trial. The worker of the run has the changed knobs if `trial.kept`.

    `lost`: the reason why the knobs of the worker differ from the knobs of the run; empty if they
    are equal.
    """

    trial: Trial
    lost: str = ""


class LiveTrial:
    """One trial on a running workload. `run` measures and settles; `cancel` ends the measurement
    early."""

    def __init__(
        self,
        trial: Trial,
        run: Run,
        control: RunControl,
        on_update: Callable[[Trial], None],
        *,
        keep: bool,
        limits: TrialLimits,
    ) -> None:
        """`run`: the current run of `control`. `on_update` receives every state of the trial.
        `keep`: whether the change remains after a win.

        Raises SessionError when nothing is running.
        """
        _, self._worker = control.running()
        self._trial, self._run, self._control, self._on_update = trial, run, control, on_update
        self._keep, self._limits = keep, limits
        self._cold = not run.applies_live(trial.changes)
        self._before: Knobs = {name: run.knobs[name] for name in trial.changes}
        self._measuring: asyncio.Task[Trial] | None = None
        self._latest = trial

    async def run(self) -> Outcome:
        """Measure, then leave the better side running. A trial that cannot be measured ends as
        failed; nothing is raised for it."""
        self._on_update(self._trial)
        self._measuring = asyncio.create_task(self._measure())
        await asyncio.wait([self._measuring])
        if self._measuring.cancelled():
            trial = msgspec.structs.replace(self._latest, state="cancelled", verdict="undecided")
        else:
            trial = self._measuring.result()
        outcome = await (self._settle_two(trial) if self._cold else self._settle_one(trial))
        self._on_update(outcome.trial)
        return outcome

    def cancel(self) -> None:
        """End the measurement and continue the baseline: the user does not want the trial, or ends
        the run. The trial ends as cancelled. Nothing changes once it is measured, nor at a second
        call."""
        if self._measuring is not None:
            self._measuring.cancel()

    def _report(self, trial: Trial) -> None:
        self._latest = trial
        self._on_update(trial)

    async def _measure(self) -> Trial:
        """The trial with its verdict. A cold change needs a second worker. The first worker pauses
        while the second worker starts."""
        trial, run = self._trial, self._run
        try:
            sides: Variants = OneWorker(self._worker, run.knobs, trial.changes)
            if self._cold:
                trial = msgspec.structs.replace(trial, method=TwoWorkers.method)
                self._report(trial)
                sides = workers = TwoWorkers(self._worker, await self._start_challenger())
                if not run.serves:
                    with self._control.lock.showing("in the second process too"):
                        await workers.age_alike()
            trial = await run_trial(trial, run, sides, self._report, self._limits)
            trial = await with_quality(trial, sides)
        except (TrialFailed, WorkerGone) as error:
            trial = msgspec.structs.replace(
                trial, state="failed", verdict="undecided", error=str(error)
            )
        return msgspec.structs.replace(trial, kept=self._keep and trial.worth_keeping)

    async def _start_challenger(self) -> WorkerHandle:
        """Pause the baseline, start a second worker with the changes, and pause this worker after
        its first steps.

        Raises TrialFailed, WorkerGone.
        """
        knobs = {**self._run.knobs, **self._trial.changes}
        await self._worker.pause()
        if why := await self._control.secondary_room(self._run, self._worker).missing_room(knobs):
            raise TrialFailed(why)
        try:
            challenger = await self._control.start_second(knobs)
        except OSError as error:
            raise TrialFailed(f"the second worker could not be started: {error.strerror}") from None
        except SessionError as error:  # the device of the run has gone
            raise TrialFailed(str(error)) from None
        try:
            async with asyncio.timeout(challenger.start_limit_s):
                await challenger.next_steps()
        except TimeoutError:
            raise TrialFailed(f"not running after {challenger.start_limit_s:.0f} s") from None
        except WorkerGone as gone:
            held = (
                self._control.secondary_room(self._run, self._worker).paused_text()
                if lacks_memory(str(gone))
                else ""
            )
            raise TrialFailed(f"{str(gone).rstrip('.')}; {held}" if held else str(gone)) from None
        await challenger.pause()
        return challenger

    async def _settle_two(self, trial: Trial) -> Outcome:
        """End the worker of the losing side."""
        winner, challenger = self._worker, self._control.second
        if trial.kept and challenger is not None:
            if challenger.alive and self._worker.alive:
                winner = challenger
                self._control.hand_over()
            else:
                trial = msgspec.structs.replace(
                    trial,
                    kept=False,
                    error=f"not kept: {(self._worker if challenger.alive else challenger).cause()}",
                )
        await self._control.end_second()
        winner.resume(0)
        return Outcome(trial)

    async def _settle_one(self, trial: Trial) -> Outcome:
        """Apply the knobs of the better side. If the worker rejects the knobs of a win, the change
        is not kept."""
        worker = self._worker
        try:
            if trial.kept:
                error = (await worker.set_knobs(trial.changes, 0)).error
                if not error:
                    return Outcome(trial)
                why = (
                    f"not kept: {describe_changes(trial.changes)} could not be applied again:"
                    f" {error}"
                )
                trial = msgspec.structs.replace(trial, kept=False, error=why)
            error = (await worker.set_knobs(self._before, 0)).error
        except WorkerGone as gone:
            if trial.kept:
                trial = msgspec.structs.replace(trial, kept=False, error=f"not kept: {gone}")
            return Outcome(trial)
        lost = (
            (
                f"the worker could not go back to {describe_changes(self._before)} after a trial:"
                f" {error}"
            )
            if error
            else ""
        )
        return Outcome(trial, lost)


async def run_trial(
    trial: Trial,
    run: Run,
    sides: Variants,
    on_update: Callable[[Trial], None],
    limits: TrialLimits = USUAL,
) -> Trial:
    """Measure `trial` on `run`. The result has a verdict (state done), or state failed with the
    reason. The side of the last block keeps running.

    Run-queue delay is subtracted on a CPU only. It is not subtracted if the change affects that
    delay (`num_threads`, or as the blocks show), or affects processes other than the training
    process (the dataloader, a model server).
    """
    measurement = _Measurement(trial, run, sides, on_update, limits)
    try:
        ended = await measurement.run()
    except LossNotFinite:
        return measurement.ended(state="done", verdict="worse", reason=NOT_FINITE, checked=False)
    except (TrialFailed, WorkerGone) as error:
        # where the job itself ended, the cause of the end is in the error of the run
        why = JOB_ENDED if run.is_job and isinstance(error, WorkerGone) else str(error)
        return measurement.ended(state="failed", verdict="undecided", error=why)
    if run.is_job and changes_numerics(trial):
        return with_training_loss(ended, measurement.losses, measurement.firsts)
    return ended


class _TimeIsUp(Exception):
    """The longest time of the trial has passed within a block."""


class _Measurement:
    """The blocks of one trial, from its start to its verdict."""

    def __init__(
        self,
        trial: Trial,
        run: Run,
        sides: Variants,
        on_update: Callable[[Trial], None],
        limits: TrialLimits,
    ) -> None:
        mean = run.summary.step_time_s
        step_s = mean.mean if mean is not None else None
        self._of_side = plans(
            run.knobs,
            trial.changes,
            run.summary.phases_ratio or None,
            of_job=run.is_job,
            step_s=step_s,
        )
        plan = self._of_side[CHANGED]
        self._free = (
            run.device == "cpu"
            and not plan.through_loader
            and not plan.serving
            and "num_threads" not in trial.changes
        )
        seed = int.from_bytes(os.urandom(4)) if trial.order_seed is None else trial.order_seed
        self._trial = msgspec.structs.replace(
            trial,
            method=sides.method,
            between=BETWEEN[sides.method],
            clock="contention_free" if self._free else "wall",
            changes_training=any(CATALOGUE[name].changes_training for name in trial.changes),
            limit_s=limit_s(trial.changes, run, limits),
            order_seed=seed,
        )
        self._sides, self._on_update, self._seed = sides, on_update, seed
        self._lengths = Lengths(step_s, seed)
        self._events = Events(plan.events_s)
        self._finite = FiniteLoss(changes_numerics(trial))
        self.losses: list[tuple[list[float], list[float]]] = []
        self.firsts: list[int] = []
        self._start, self._compiled = time.monotonic(), False
        self._decided: Verdict | None = None

    def ended(self, **changes: Any) -> Trial:
        """The trial as it stands, with `changes`."""
        elapsed_s = time.monotonic() - self._start
        self._trial = msgspec.structs.replace(self._trial, elapsed_s=elapsed_s, **changes)
        return self._trial

    async def run(self) -> Trial:
        """Measure pairs until the verdict, or until the limit. Raises TrialFailed, WorkerGone,
        LossNotFinite."""
        self._on_update(self._trial)
        measured: MeasuredPairs | None = None
        noise: StepNoise | None = None
        with contextlib.suppress(_TimeIsUp):
            for pair in itertools.islice(order(self._seed), MAX_PAIRS):
                blocks = {block.arm: await self._block(block) for block in pair}
                if measured is None or noise is None:
                    work, plan = _work_of(blocks, self._trial.changes), self._of_side[CHANGED]
                    measured = MeasuredPairs(plan, self._events, work)
                    noise = StepNoise(work, plan, self._free)
                    self._trial = msgspec.structs.replace(self._trial, by_steps=work is one_step)
                if not all(sum(map(work, steps)) > 0 for steps in blocks.values()):
                    raise TrialFailed(NO_WORK)
                self.losses.append((losses_of(blocks[BASELINE]), losses_of(blocks[CHANGED])))
                self.firsts.append(pair[0].arm)
                measured.add(pair[0].arm, blocks)
                for arm, steps in blocks.items():
                    noise.add(arm, steps)
                self._decided, exhausted = self._judge(measured, noise)
                self._on_update(self._trial)
                if self._is_over(measured, exhausted):
                    break
        return self._concluded(measured)

    async def _block(self, block: Block) -> list[Step]:
        """The counted steps of `block`. Raises _TimeIsUp after the longest time of a trial.

        The first steps with the change may compile for minutes, which is no part of the
        measurement.
        """
        asked = time.monotonic()
        await self._sides.switch_to(block.arm)
        worker = self._sides.worker(block.arm)
        plan = self._of_side[block.arm]
        arriving = NextBlock(plan, self._lengths, block.arm, block.stretch)
        compiles = block.arm == CHANGED and not self._compiled
        # a start takes its time, and so does a server that settles
        by_steps = not plan.serving and self._sides.method != "restarts ABBA"
        most_s = MAX_OF_LIMIT * (self._trial.limit_s or math.inf)
        limit_s = most_s if by_steps and not compiles else math.inf
        while (counted := arriving.counted(worker.trial_steps)) is None:
            if time.monotonic() - self._start > limit_s:
                raise _TimeIsUp
            await worker.next_steps()
        if compiles:
            self._compiled = True
            took_s = time.monotonic() - asked
            self._start += max(0.0, took_s - sum(step.wall_s for step in counted))
        self._finite.add(block.arm, counted)
        return counted

    def _judge(self, measured: MeasuredPairs, noise: StepNoise) -> tuple[Verdict | None, bool]:
        """Compute the figures of the trial from all pairs so far. Return the verdict, if the pairs
        prove one, and whether more pairs add little."""
        cycles = {arm: self._lengths.cycle(arm) for arm in self._of_side}
        units = {arm: math.lcm(self._of_side[arm].unit, cycle) for arm, cycle in cycles.items()}
        measured.cycles = {arm: self._lengths.whole(arm, self._of_side[arm]) for arm in cycles}
        free = self._free and not measured.waits_differ()
        after_switch = measured.settles(free, units, first_third, CHANCE)
        lasting = after_switch and measured.settles(free, units, middle_third, CHANCE_OF_MORE)
        part = last_third if after_switch else whole
        pairs, on_wall = measured.pairs(free, part), measured.pairs(False, part)
        ratios, nulls = pairs.log_ratios, pairs.null_log_ratios
        least = noise.deviation(units) * (math.sqrt(THIRDS) if after_switch else 1.0)
        anyway = BETWEEN[self._sides.method]
        between = math.hypot(
            anyway, self._events.error({arm: measured.step_s(arm) for arm in cycles})
        )
        decided = verdict(ratios, nulls, between, least)
        if lasting or (decided == "win" and free and not confirms(on_wall.log_ratios)):
            # what lasts after a switch, or the waits for a core, may be the whole gain
            decided = None
        self._trial = msgspec.structs.replace(
            self._trial,
            clock="contention_free" if free else "wall",
            between=between,
            speedup=speedup(ratios, between, least),
            wall_speedup=speedup(on_wall.log_ratios, between, least),
            step_deviation=least,
            stalls_from=noise.stalls_from,
            blocks=2 * len(ratios),
            log_ratios=tuple(ratios),
            null_log_ratios=tuple(nulls),
            resolution_ratio=resolution(nulls, len(ratios), between),
            elapsed_s=time.monotonic() - self._start,
            spread_s=self._events.total_s,
            after_switch=after_switch,
            lasting=lasting,
        )
        return decided, exhausted(ratios, nulls, anyway, least)

    @property
    def _limit_s(self) -> float:
        """The longest time of the trial in seconds. A decided trial goes on for an evaluation or a
        checkpoint that matters and has not come on both sides."""
        return (self._trial.limit_s or math.inf) * (MAX_OF_LIMIT if self._decided else 1.0)

    def _is_over(self, measured: MeasuredPairs, exhausted: bool) -> bool:
        """Return whether the trial ends after this pair."""
        if self._decided and not self._events.unseen(measured.step_s(BASELINE)):
            return True
        over = self._trial.elapsed_s > self._limit_s or (exhausted and not self._decided)
        return over and len(self._trial.log_ratios) >= MIN_PAIRS

    def _concluded(self, measured: MeasuredPairs | None) -> Trial:
        """The trial with its verdict, and with what was not looked for."""
        decided, unseen = self._decided or "undecided", list[str]()
        if measured is not None and self._trial.speedup is not None:
            step_s = measured.step_s(BASELINE)
            unseen = self._events.unseen(step_s)
            worst = self._events.at_worst_ratio(step_s)
            if decided == "win" and unseen and self._trial.speedup.low <= worst:
                decided = "undecided"
        return self.ended(state="done", verdict=decided, unseen=tuple(unseen))


def _work_of(blocks: Mapping[int, Sequence[Step]], changes: Knobs) -> Work:
    """See `work_in`. Raises TrialFailed where the sides cannot be compared."""
    known = {any(map(work_of_step, steps)) for steps in blocks.values()}
    if len(known) > 1:
        raise TrialFailed(NO_WORK)
    try:
        return work_in(next(iter(blocks.values())), changes)
    except ValueError as problem:
        raise TrialFailed(str(problem)) from None


async def with_quality(trial: Trial, sides: Variants) -> Trial:
    """`trial` with a quality measure of both sides, if the change alters computed values:
    perplexity (model server) or held-out loss (training). Without the measure if it is not
    available on both sides."""
    if trial.state != "done" or trial.held_out_loss is not None or not trial.checked:
        return trial
    if any(CATALOGUE[name].changes_output for name in trial.changes):
        return await _with_perplexity(trial, sides)
    # with two workers the sides have different weights after some steps
    if changes_numerics(trial) and sides.method == "live ABBA":
        return await _with_loss(trial, sides)
    return trial


def changes_numerics(trial: Trial) -> bool:
    return any(CATALOGUE[name].changes_numerics for name in trial.changes)


def losses_of(steps: Sequence[Step]) -> list[float]:
    return [step.loss for step in steps if step.loss is not None]


def finite(losses: Sequence[float]) -> list[float]:
    return [loss for loss in losses if math.isfinite(loss)]


class FiniteLoss:
    """Watches the losses of the blocks of a trial, in order of time.

    A loss that is not finite and is followed by finite ones is one that the program overcomes, for
    example by a gradient scaler that leaves the step out. It speaks against a change of numerics
    only, and only where the side without the change has fewer.
    """

    MIN_READ = 0.5
    """From this share of the steps on, the losses of a side are read on its steps, not only where
    the program logs one."""

    def __init__(self, numerics: bool) -> None:
        """`numerics`: whether the change alters computed values."""
        self._numerics = numerics
        self._shares: dict[int, list[float]] = {BASELINE: [], CHANGED: []}
        self._losses: dict[int, list[float]] = {BASELINE: [], CHANGED: []}

    def add(self, arm: int, steps: Sequence[Step]) -> None:
        """Add the block of a side. Raises LossNotFinite where its loss stays not finite, where it
        has lost its losses, or where the change brings losses that are not finite, once the changed
        side has run.

        Before the changed side has run, a loss that is not finite is not the work of the change.
        """
        losses, before = losses_of(steps), self._shares[arm]
        lost = len(before) > 1 and min(before) >= self.MIN_READ and not losses
        tried = arm == CHANGED or bool(self._shares[CHANGED])
        before.append(len(losses) / len(steps))
        self._losses[arm] += losses
        was_finite = any(map(math.isfinite, self._losses[BASELINE] + self._losses[CHANGED]))
        brings = self._numerics and brings_infinite(self._losses[BASELINE], self._losses[CHANGED])
        if tried and was_finite and (lost or stays_infinite(self._losses[arm]) or brings):
            raise LossNotFinite


def stays_infinite(losses: Sequence[float]) -> bool:
    """Return whether the last two losses of a side are not finite. Weights that are not finite give
    no finite loss again."""
    return len(losses) > 1 and not any(map(math.isfinite, losses[-2:]))


def brings_infinite(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether the losses with a change, `after`, are not finite more often than those
    without it, `before`: where no loss without the change is, or where so many more would come by
    chance once in a hundred times."""
    counts = [sum(not math.isfinite(loss) for loss in losses) for losses in (before, after)]
    if not counts[0] or not counts[1]:
        return bool(counts[1])
    share, every = len(after) / (len(before) + len(after)), sum(counts)
    chance = sum(
        math.comb(every, n) * share**n * (1 - share) ** (every - n)
        for n in range(counts[1], every + 1)
    )
    return chance < 0.01


def with_training_loss(
    trial: Trial, pairs: Sequence[tuple[list[float], list[float]]], firsts: Sequence[int] = ()
) -> Trial:
    """`trial` of a user's job with the losses of its own steps, without and with the change, for
    each pair of blocks. `firsts`: the arm that came first in each pair; empty: not known.

    The job has no held-out batches. The blocks of a pair follow each other, so the progress between
    them is half of that from one pair to the next, which the middles of the pairs show: they do not
    depend on the change. This progress is taken off. `drift` is half of the 95 % interval of what
    is left. `FiniteLoss` has looked at the losses that are not finite, or are gone.
    """
    pairs = [(finite(before), finite(after)) for before, after in pairs]
    seen = [place for place, (before, after) in enumerate(pairs) if before and after]
    if len(seen) < 2:
        return msgspec.structs.replace(trial, error="no loss of the job was seen", checked=False)
    means = [
        (statistics.fmean(pairs[place][0]), statistics.fmean(pairs[place][1])) for place in seen
    ]
    signs = [0 if not firsts else 1 if firsts[place] == BASELINE else -1 for place in seen]
    middles = [(before + after) / 2 for before, after in means]
    differences = [
        after - before - sign * _progress(middles, place) / 2
        for place, (sign, (before, after)) in enumerate(zip(signs, means, strict=True))
    ]
    before = statistics.fmean(before for before, _ in means)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    drift = student(len(differences) - 1) * error
    return msgspec.structs.replace(
        trial,
        held_out_loss=HeldOutLoss(
            before, before + statistics.fmean(differences), drift, training=True
        ),
    )


def _progress(middles: Sequence[float], place: int) -> float:
    """The change of the loss from one pair to the next, near the pair at `place`."""
    first, last = max(0, place - 1), min(len(middles) - 1, place + 1)
    return (middles[last] - middles[first]) / (last - first)


async def _with_perplexity(trial: Trial, sides: Variants) -> Trial:
    answers = [await sides.worker(arm).probe("perplexity") for arm in (BASELINE, CHANGED)]
    values = [
        answer.signals["quality.perplexity"].value
        for answer in answers
        if "quality.perplexity" in answer.signals
    ]
    if len(values) < 2:
        return msgspec.structs.replace(
            trial,
            error=(
                "perplexity not measured: "
                f"{next((answer.error for answer in answers if answer.error), '')}"
            ),
        )
    return msgspec.structs.replace(trial, perplexity=Perplexity(*values))


async def _with_loss(trial: Trial, sides: Variants) -> Trial:
    """Measure the held-out loss in the order without, with, without, with, without the change.

    A few training steps lie between two looks. So each look with the change is compared with the
    middle of the looks before and after it: a steady fall of the loss, however fast, cancels. The
    noise is how far the looks without the change are from a straight line.
    """
    losses = list[float]()
    for arm in (BASELINE, CHANGED, BASELINE, CHANGED, BASELINE):
        await sides.switch_to(arm)
        answer = await sides.worker(arm).probe("held_out_loss")
        if "quality.held_out_loss_not_finite" in answer.signals and arm == CHANGED:
            return msgspec.structs.replace(trial, verdict="worse", reason=NOT_FINITE, checked=False)
        if "quality.held_out_loss" not in answer.signals:
            why = answer.error or NOT_FINITE
            return msgspec.structs.replace(
                trial, error=f"held-out loss not measured: {why}", checked=False
            )
        losses.append(answer.signals["quality.held_out_loss"].value)
    first, changed, second, again, third = losses
    before = (first + second) / 2
    difference = ((changed - before) + (again - (second + third) / 2)) / 2
    curved = abs(second - (first + third) / 2)
    return msgspec.structs.replace(
        trial, held_out_loss=HeldOutLoss(before, before + difference, curved)
    )


# --- how long a trial will take and what it can resolve, before it starts -------------------------
# Pure: numbers in, numbers out.

ROOM = 1.5
"""The limit of a trial of slow steps over the expected time of its first MIN_PAIRS pairs: a change
may make the steps slower."""


def cap_s(changes: Knobs, limits: TrialLimits) -> float:
    """Return the longest time of a trial of `changes` in seconds, where its steps are not slow."""
    knobs = [CATALOGUE[name] for name in changes]
    if any(knob.serving for knob in knobs):
        return limits.serving_cap_s
    return limits.loader_cap_s if any(knob.loader for knob in knobs) else limits.cap_s


def limit_s(changes: Knobs, run: Run, limits: TrialLimits) -> float:
    """Return the longest time of a trial of `changes` to `run` in seconds: `cap_s`, or the time
    that the fewest pairs of slow steps need."""
    return max(cap_s(changes, limits), 0.0 if run.serves else ROOM * least_s(changes, run))


def least_s(changes: Knobs, run: Run) -> float:
    """Return the expected seconds of the fewest pairs that can decide a trial of `changes` to
    `run`; 0 where the time of a step is not known."""
    mean, signal = run.summary.step_time_s, run.signals.get("step_s")
    step_s = mean.mean if mean is not None else signal.value if signal is not None else 0.0
    sides = plans(run.knobs, changes, run.summary.phases_ratio or None, of_job=run.is_job)
    return MIN_PAIRS * sum(
        MEAN_STRETCH * plan.least_s(step_s) + plan.settling * step_s for plan in sides.values()
    )


NOISE_BLOCKS = 8
"""Number of blocks of the run that show its noise. They take 16 s, a small part of a trial that
starts a server."""
FIRST_STEPS_S = 1.0
"""Seconds from a ready server to the first report of the load generator, and to the pause after
it."""


def forecast_restart(
    run: Run,
    steps: Sequence[Step],
    changes: Knobs,
    predicted: Interval | None,
    limits: TrialLimits,
    start_s: float,
) -> Forecast:
    """The forecast of a trial of `changes` with a second model server. `steps`: the steady steps of
    the run, as a sample of its noise. `start_s`: seconds that the present server took to start; the
    second server takes as long.

    Each block has the settling time and the counted time. The number of pairs is the number that
    the noise requires, at most the number that fits into the time limit. The noise comes from
    successive blocks of the run, like the null pairs of a trial.
    """
    plan = plans(run.knobs, changes, run.summary.phases_ratio or None)[CHANGED]
    step_s = sum(step.wall_s for step in steps) / len(steps) if steps else 0.0
    e2e = run.summary.e2e_s
    pair_s = 2 * (settle_s(e2e.p50 if e2e else None) + MEAN_STRETCH * plan.least_s(step_s) + step_s)
    most = max(MIN_PAIRS, min(MAX_PAIRS, math.ceil(limits.serving_cap_s / pair_s)))
    nulls = null_log_ratios(steps, plan.min_s)
    between = BETWEEN["two workers ABBA"]
    pairs = pairs_needed(nulls, between, predicted.middle if predicted else None, most)
    return Forecast(start_s + FIRST_STEPS_S + pairs * pair_s, resolution(nulls, most, between))


def noise_s(run: Run, changes: Knobs) -> float:
    """Seconds of steps that `forecast_restart` needs to know the noise of the run."""
    return NOISE_BLOCKS * plans(run.knobs, changes)[CHANGED].min_s


def null_log_ratios(steps: Sequence[Step], block_s: float) -> list[float]:
    """Log ratios of the rates of successive blocks of `block_s` seconds: the run compared with
    itself."""
    rates, block, seconds = list[float](), list[Step](), 0.0
    for step in steps:
        block.append(step)
        seconds += step.wall_s
        if seconds >= block_s:
            rates.append(rate(block, False))
            block, seconds = [], 0.0
    return [
        math.log(later / earlier)
        for earlier, later in pairwise(positive for positive in rates if positive > 0)
    ]


def forecast_line(forecast: Forecast, server: bool) -> str:
    """What a trial will take, in one or two sentences. `server`: it starts a second model
    server."""
    what = "starts a second model server" if server else "of such slow steps takes long"
    sentence = f"The trial {what}: {units.about(forecast.seconds)}."
    if forecast.resolution_ratio is not None:
        sentence += (
            f" It can resolve a change of {units.precise_percent(forecast.resolution_ratio)} at"
            " best."
        )
    return sentence


def refusal(changes: Knobs, forecast: Forecast, expected: Interval) -> str:
    """Why a trial is not started, and how to start it anyway."""
    assert forecast.resolution_ratio is not None
    takes = (
        f"it would take {units.about(forecast.seconds)} and resolve"
        f" {units.precise_percent(forecast.resolution_ratio)} at best"
    )
    gain = units.interval(expected.low, expected.high)
    force = " ".join(f"--try {name}={show(value)}" for name, value in changes.items())
    return (
        f"{describe_changes(changes)}: no trial: {takes}, and the predicted speedup is {gain}; to"
        f" try it anyway: {force}, or k on the screen"
    )
