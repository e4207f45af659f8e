"""A sweep. Settings that apply live share a worker. Each other setting has its own worker, which
pauses between its turns. A user's own job is the only worker of its sweep."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from gpuconsole.engine.children.pool import DeviceSelection
from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.engine.children.torchrun import Launch
from gpuconsole.engine.children.worker import SERVING, TRAINING, WorkerGone, WorkerHandle
from gpuconsole.experiments.block_order import random_stretch
from gpuconsole.experiments.statistics import (
    MIN_PAIRS,
    NO_WORK,
    BlockPlan,
    one_step,
    rate,
    simultaneous_interval,
    work_in,
)
from gpuconsole.experiments.steps import LOOKED_FOR, Lengths, NextBlock
from gpuconsole.experiments.trial import TrialFailed
from gpuconsole.model.experiments import Sweep, SweepPoint
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs, Value
from gpuconsole.model.knobs.knob import NO_EFFECT
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Run, Step
from gpuconsole.model.scenario import Scenario, job_scenario
from gpuconsole.session.api import SessionError
from gpuconsole.session.figures.rate import Work

START_S = 300.0
"""Time for a worker to report a first step, or the next step of a block."""
SERVER_START_S = 1260.0
"""The same for a model server: a large model takes minutes to load and compile. The serving worker
reports a failure after 20 minutes."""
MAX_WORKERS = 8
"""Maximum number of workers. Each worker keeps its memory during the whole sweep."""
MIN_REPEATS = MIN_PAIRS
WORSE_BY = 0.95
"""A point is settled if the upper end of its interval is below this share of the lower end of the
best point's interval."""


def points(vary: dict[str, list[Value]], base: Knobs, grid: bool) -> list[Knobs]:
    """The settings to measure, each once: one factor at a time around `base`, which comes first; or
    with `grid` every combination."""
    if grid:
        return [
            dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())
        ]
    points: list[Knobs] = [{name: base[name] for name in vary}]
    points += [
        {**points[0], name: value}
        for name, values in vary.items()
        for value in values
        if value != base[name]
    ]
    return points if any(base[name] in values for name, values in vary.items()) else points[1:]


def rounds(count: int, repeats: int, seed: int) -> Iterator[list[tuple[int, float]]]:
    """The points of each round in random order: the index of a point, and the length of its block
    as a multiple of the shortest block.

    A disturbance that comes at regular intervals therefore meets no point more often than another
    (see `block_order.order`).
    """
    chance = random.Random(seed)
    for _ in range(repeats):
        yield [(index, random_stretch(chance)) for index in chance.sample(range(count), count)]


def add_repeat(point: SweepPoint, steps: Sequence[Step], contention_free: bool, work: Work) -> None:
    """Add a block of `point`, in which work was done."""
    per_s = rate(steps, contention_free, work)
    point.rates.append(per_s)
    point.seconds.append(sum(map(work, steps)) / per_s)
    point.steps += len(steps)


def evaluate(sweep: Sweep) -> None:
    """Compute the interval of every point, and mark the points that are proven not to be the best.

    A sweep is evaluated after every round, and its best point is chosen because it was fast. So the
    intervals are confidence sequences that hold together for all points (see
    `simultaneous_interval`).
    """
    for point in sweep.points:
        bounds = simultaneous_interval(point.linear_rates, len(sweep.points))
        # no rate is negative
        point.low, point.high = (max(0.0, bounds[0]), bounds[1]) if bounds else (None, None)
    measured = [point for point in sweep.points if len(point.rates) >= MIN_REPEATS]
    best = max((point.low for point in measured if point.low is not None), default=None)
    for point in measured:
        if best is not None and point.high is not None:
            point.settled = point.settled or point.high < WORSE_BY * best
    fewest = min((point.steps for point in measured if not point.settled), default=0)
    sweep.stalls_from = round(fewest / LOOKED_FOR)


def unit_of(steps: Sequence[Step], work: Work) -> str:
    """Return the unit of the rate of `steps`, whose work is counted by `work`."""
    return (
        "steps/s"
        if work is one_step
        else "tokens/s"
        if any(step.tokens for step in steps)
        else "samples/s"
    )


async def fill(
    sweep: Sweep,
    block: Callable[[int, float], Awaitable[Sequence[Step]]],
    on_update: Callable[[Sweep], None],
    *,
    warm_up: bool = False,
    stop_settled: bool = False,
) -> None:
    """Measure all points of `sweep` in turn, in interleaved rounds. `block`: measures a block of
    the point with an index, of a length as in `rounds`; a point whose block fails has the error.
    `warm_up`: a first round does not count. `stop_settled`: points that are proven not to be the
    best are measured no more."""
    begun, free = time.monotonic(), sweep.clock == "contention_free"
    work: Work | None = None
    sweep.order_seed = seed = int.from_bytes(os.urandom(4))
    for number, order in enumerate(rounds(len(sweep.points), sweep.repeats + warm_up, seed)):
        for index, stretch in order:
            point = sweep.points[index]
            if point.error or (stop_settled and point.settled):
                continue
            try:
                steps = await block(index, stretch)
                work = work or work_in(steps, sweep.varied)
                sweep.unit = unit_of(steps, work)
                if not rate(steps, free, work):
                    raise ValueError(NO_WORK)
            except (TrialFailed, WorkerGone, SessionError, ValueError) as problem:
                point.error = str(problem)
            else:
                if number or not warm_up:
                    add_repeat(point, steps, free, work)
            sweep.elapsed_s = round(time.monotonic() - begun, 1)
            on_update(sweep)
        evaluate(sweep)


class Sweeper:
    """Measures the points of a sweep. `close` ends the workers."""

    OF_JOB = False
    """Whether the worker is the user's own job."""

    def __init__(
        self,
        chosen: Scenario,
        base: Knobs,
        device: Device,
        serving: ServingChoice,
        devices: DeviceSelection | None = None,
    ) -> None:
        """`devices` chooses the GPUs of runs in several processes."""
        self._devices = devices
        self._chosen, self._base, self._device, self._serving = chosen, base, device, serving
        self._workers: list[tuple[Knobs, WorkerHandle]] = []
        """Workers with the knobs of their start."""
        self._failed: list[tuple[Knobs, str]] = []
        """Cold knobs with which a worker did not start or stopped responding, and the reason."""
        self._running: WorkerHandle | None = None
        self._live_limits = True
        """Whether the servers report live limits; the present knowledge."""
        self._lengths = Lengths()
        self._patience_s = SERVER_START_S if chosen.workload.serves else START_S

    async def run(
        self,
        points: list[Knobs],
        repeats: int,
        stop_settled: bool,
        on_update: Callable[[Sweep], None],
    ) -> Sweep:
        """Measure every point `repeats` times, after a warm-up round. Raises SessionError where no
        point can be measured."""
        self._check_count(points)
        through_loader = any(CATALOGUE[name].loader for point in points for name in point)
        free = self._device.id == "cpu" and not through_loader and not self._chosen.workload.serves
        free = free and not any("num_threads" in point for point in points)
        sweep = Sweep(
            self._chosen.name,
            self._device.id,
            "tokens/s",
            self._base,
            [SweepPoint(point) for point in points],
            repeats,
            "contention_free" if free else "wall",
        )

        async def block(index: int, stretch: float) -> list[Step]:
            return await self._block(index + 1, stretch, points[index], points)

        await fill(sweep, block, on_update, warm_up=True, stop_settled=stop_settled)
        if all(point.error for point in sweep.points):
            raise SessionError(sweep.points[0].error)
        return sweep

    def _check_count(self, points: list[Knobs]) -> None:
        """Raises SessionError where more workers would be needed than are possible."""
        if (own := len({repr(sorted(_restarts(point).items())) for point in points})) > MAX_WORKERS:
            raise SessionError(
                f"{own} settings need their own worker: at most {MAX_WORKERS} are possible at a"
                " time"
            )

    async def close(self) -> None:
        for _, worker in self._workers:
            worker.kill()
        for _, worker in self._workers:
            await worker.stop()

    async def _block(
        self, arm: int, stretch: float, point: Knobs, points: list[Knobs]
    ) -> list[Step]:
        """The counted steps of one block under `point`. Raises WorkerGone, SessionError."""
        worker = await self._worker(point, points)
        if worker is not self._running:
            await self._pause_running()
            worker.resume(arm)
            self._running = worker
        worker.trial_steps.clear()
        answer = await worker.set_knobs(self._changes(point, worker), arm)
        if answer.error:
            raise SessionError(answer.error)
        plan = BlockPlan({**self._base, **point}, point, of_job=self.OF_JOB)
        block = NextBlock(plan, self._lengths, arm, stretch)
        while (counted := block.counted(worker.trial_steps)) is None:
            await self._next_steps(worker)
        return counted

    def _changes(self, point: Knobs, worker: WorkerHandle) -> Knobs:
        """The values of `point` that are set in `worker`; the others are those of its start."""
        started = next(knobs for knobs, other in self._workers if other is worker)
        return {
            name: value for name, value in point.items() if _lives(name, value, started, worker)
        }

    async def _next_steps(self, worker: WorkerHandle) -> None:
        """Wait for steps. Raises WorkerGone. A worker that does not respond is stopped before
        SessionError is raised, so that it does not disturb other points."""
        try:
            async with asyncio.timeout(self._patience_s):
                await worker.next_steps()
        except TimeoutError:
            await self._end(worker)
            why = f"no step within {self._patience_s:g} s"
            self._failed += [
                (_cold(knobs), why) for knobs, other in self._workers if other is worker
            ]
            raise SessionError(why) from None

    async def _end(self, worker: WorkerHandle) -> None:
        if self._running is worker:
            self._running = None
        worker.kill()
        await worker.stop()

    async def _pause_running(self) -> None:
        """Pause the running worker before another worker runs. If the worker is gone, its own
        points report that at their next turn."""
        if self._running is not None:
            worker, self._running = self._running, None
            with contextlib.suppress(WorkerGone):
                try:
                    async with asyncio.timeout(self._patience_s):
                        await worker.pause()
                except TimeoutError:
                    await self._end(worker)

    async def _worker(self, point: Knobs, points: list[Knobs]) -> WorkerHandle:
        """A worker that can measure `point`. Starts a worker if no running worker can measure it.
        Raises WorkerGone, SessionError."""
        knobs = self._start_knobs(point, points)
        if why := next((why for failed, why in self._failed if failed == _cold(knobs)), ""):
            raise SessionError(why)
        worker = next(
            (other for started, other in self._workers if _takes(point, started, other)), None
        )
        if worker is None:
            if len(self._workers) >= MAX_WORKERS:
                raise SessionError(f"more than {MAX_WORKERS} settings need their own worker")
            worker = await self._launch(knobs)
            self._live_limits = self._live_limits and all(
                _takes(other, knobs, worker) for other in _alike(point, points)
            )
            # the server reports no live limit: it keeps the values of its start
            if not _takes(point, knobs, worker):
                if not any(_takes(point, knobs, worker) for point in points):
                    await self._end(worker)
                    self._workers.pop()
                worker = await self._launch({**self._base, **point})
        if not worker.alive:
            raise WorkerGone(worker.cause())
        notes = worker.last_started.notes if worker.last_started is not None else {}
        idle = [
            f"{name} has no effect: {notes[NO_EFFECT + name]}"
            for name in point
            if NO_EFFECT + name in notes
        ]
        if idle:
            raise SessionError("; ".join(idle))
        return worker

    def _start_knobs(self, point: Knobs, points: list[Knobs]) -> Knobs:
        """The knobs of a worker for `point` and for all points that differ in live knobs only: live
        limits at their largest value."""
        if not self._live_limits:
            return {**self._base, **point}
        largest = {
            name: max(int(other[name]) for other in _alike(point, points))
            for name in point
            if CATALOGUE[name].lowered_live
        }
        return {**self._base, **point, **largest}

    async def _launch(self, knobs: Knobs) -> WorkerHandle:
        """A paused worker with `knobs`. Raises WorkerGone, SessionError."""
        await self._pause_running()
        nproc = int(knobs.get("nproc", 1))
        module = SERVING if self._chosen.workload.serves else TRAINING
        visible = self._devices.cuda_names(nproc) if self._devices is not None else ""
        launch = Launch(nproc, cuda_devices=visible) if nproc > 1 else None
        try:
            worker = WorkerHandle(lambda event: None, lambda worker, code: None, launch, module)
        except OSError as problem:
            self._failed.append((_cold(knobs), str(problem)))
            raise SessionError(str(problem)) from None
        self._workers.append((knobs, worker))
        try:
            await worker.launch()
            gpus = self._devices.of_server(knobs) if self._devices is not None else ()
            worker.start(
                self._chosen.workload.name, knobs, self._device, self._serving.options, gpus
            )
            await self._next_steps(worker)
            await worker.pause()
        except (WorkerGone, OSError) as problem:
            await self._end(worker)
            self._failed.append((_cold(knobs), str(problem)))
            raise SessionError(str(problem)) from None
        return worker


class JobSweeper(Sweeper):
    """Measures settings that apply live to the job. A setting that does not apply live is reported
    with the reason. `close` brings the values from before back; the job continues."""

    OF_JOB = True

    def __init__(self, run: Run, worker: WorkerHandle, device: Device) -> None:
        """`run`: the run of the job, with its knobs. `worker`: the job."""
        super().__init__(job_scenario(run.scenario), dict(run.knobs), device, ServingChoice())
        self._run, self._job = run, worker
        self._running = worker
        self._swept: set[str] = set()

    def _check_count(self, points: list[Knobs]) -> None:
        """One worker measures all points."""
        self._swept = {name for point in points for name in point}

    async def _worker(self, point: Knobs, points: list[Knobs]) -> WorkerHandle:
        if not self._job.alive:
            raise WorkerGone("the job has ended")
        if reason := self._run.why_not(
            {name: value for name, value in point.items() if value != self._run.knobs.get(name)}
        ):
            raise SessionError(reason)
        return self._job

    def _changes(self, point: Knobs, worker: WorkerHandle) -> Knobs:
        return point

    async def _end(self, worker: WorkerHandle) -> None:
        """A job that makes no step is left alone."""

    async def close(self) -> None:
        before = {name: self._run.knobs[name] for name in self._swept if name in self._run.knobs}
        with contextlib.suppress(WorkerGone):
            await self._job.set_knobs(before, 0)


def _cold(knobs: Knobs) -> Knobs:
    return {name: value for name, value in knobs.items() if CATALOGUE[name].apply == "cold"}


def _restarts(point: Knobs) -> Knobs:
    """The values of `point` that always need their own worker."""
    return {name: value for name, value in _cold(point).items() if not CATALOGUE[name].lowered_live}


def _alike(point: Knobs, points: list[Knobs]) -> list[Knobs]:
    """The points that one worker can measure where its limits apply live."""
    return [other for other in points if _restarts(other) == _restarts(point)]


def _lives(name: str, value: Value, started: Knobs, worker: WorkerHandle) -> bool:
    """Whether `value` can be set in `worker`. `started`: the knobs of the worker's start; the
    present value may differ."""
    facts = worker.last_started.facts if worker.last_started is not None else {}
    return CATALOGUE[name].applies_live(value, facts)


def _takes(point: Knobs, started: Knobs, worker: WorkerHandle) -> bool:
    """Whether `worker` can measure `point` without a restart. `started`: the knobs of the worker's
    start."""
    return all(
        started.get(name) == value or _lives(name, value, started, worker)
        for name, value in point.items()
    )
