"""A sweep on workers of its own: hot settings in turn in one of them, cold ones each in another that stands still meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from gpuconsole.experiments.blocks import BlockPlan, rate
from gpuconsole.experiments.statistics import student
from gpuconsole.model.experiments.sweep import Sweep, SweepPoint
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs, Value
from gpuconsole.model.knobs.knob import NO_EFFECT
from gpuconsole.model.machine.device import Device
from gpuconsole.model.run import Step
from gpuconsole.model.scenario import Scenario
from gpuconsole.processes.serving import ServingChoice
from gpuconsole.processes.torchrun import Launch
from gpuconsole.processes.worker import SERVING, TRAINING, WorkerGone, WorkerHandle
from gpuconsole.session.api import SessionError

START_S = 300.0
MOST_WORKERS = 8
"""Settings that need a worker of their own keep it for the whole sweep: so many fit beside each other."""

MIN_REPEATS = 4
WORSE_BY = 0.95
"""A point whose interval ends below 95 % of where the best one's begins is settled."""


def points(vary: dict[str, list[Value]], base: Knobs, grid: bool) -> list[Knobs]:
    """One factor at a time around `base`, which comes first; or with `grid` every combination. Each once."""
    if grid:
        return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
    found: list[Knobs] = [{name: base[name] for name in vary}]
    found += [{**found[0], name: value} for name, values in vary.items() for value in values if value != base[name]]
    return found if any(base[name] in values for name, values in vary.items()) else found[1:]


def rounds(count: int, repeats: int) -> Iterator[list[int]]:
    """Indices of the points, round after round: forwards, backwards, forwards, ..."""
    for number in range(repeats):
        yield list(range(count)) if number % 2 == 0 else list(reversed(range(count)))


def interval(rates: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean; None for fewer than two repeats."""
    n = len(rates)
    if n < 2:
        return None
    mean = sum(rates) / n
    half = student(n - 1) * math.sqrt(sum((rate - mean) ** 2 for rate in rates) / (n - 1) / n)
    return mean - half, mean + half


def settle(found: Sequence[SweepPoint]) -> None:
    """Mark the points that are clearly not the best."""
    known = [(one, interval(one.rates)) for one in found if len(one.rates) >= MIN_REPEATS and not one.settled]
    if not known:
        return
    best = max(bounds[0] for _, bounds in known if bounds is not None)
    for one, bounds in known:
        one.settled = bounds is not None and bounds[1] < WORSE_BY * best


class Sweeper:
    """Measures the points of a sweep. `close` ends what it has started."""

    def __init__(self, chosen: Scenario, base: Knobs, device: Device, serving: ServingChoice) -> None:
        self._chosen, self._base, self._device, self._serving = chosen, base, device, serving
        self._workers: dict[str, WorkerHandle] = {}
        self._running: WorkerHandle | None = None

    async def run(self, points: list[Knobs], repeats: int, stop_settled: bool, on_update: Callable[[Sweep], None]) -> Sweep:
        """Every point `repeats` times, after one round that warms up. Raises SessionError where nothing can be measured at all."""
        cold = {self._key(point) for point in points}
        if len(cold) > MOST_WORKERS:
            raise SessionError(f"{len(cold)} settings need a worker of their own: at most {MOST_WORKERS} at a time")
        begun = time.monotonic()
        through_loader = any(CATALOGUE[name].loader for point in points for name in point)
        free = self._device.id == "cpu" and not through_loader and not self._chosen.workload.serves
        free = free and not any("num_threads" in point for point in points)
        clock: Literal["wall", "contention_free"] = "contention_free" if free else "wall"
        unit = "tokens/s"
        sweep = Sweep(self._chosen.name, self._device.id, unit, self._base, [SweepPoint(point) for point in points], repeats, clock)
        for number, order in enumerate(rounds(len(points), repeats + 1)):
            for index in order:
                point = sweep.points[index]
                if point.error or (stop_settled and point.settled):
                    continue
                try:
                    steps = await self._block(index + 1, point.knobs)
                except (WorkerGone, SessionError) as problem:
                    point.error = str(problem)
                else:
                    sweep.unit = "tokens/s" if any(step.tokens for step in steps) else "samples/s"
                    if number:
                        point.rates.append(rate(steps, free))
                sweep.elapsed_s = round(time.monotonic() - begun, 1)
                on_update(sweep)
            settle(sweep.points)
        if all(point.error for point in sweep.points):
            raise SessionError(sweep.points[0].error)
        return sweep

    async def close(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            await worker.stop()

    def _key(self, point: Knobs) -> str:
        """Settings that share a worker: those that differ in hot knobs only."""
        return repr(sorted((name, value) for name, value in point.items() if CATALOGUE[name].apply == "cold"))

    async def _block(self, arm: int, point: Knobs) -> list[Step]:
        """The counted steps of one block under `point`. Raises WorkerGone, SessionError."""
        worker = await self._worker(point)
        if worker is not self._running:
            await self._stand_still()
            worker.resume(arm)
            self._running = worker
        worker.trial_steps.clear()
        answer = await worker.set_knobs({name: value for name, value in point.items() if CATALOGUE[name].apply == "hot"}, arm)
        if answer.error:
            raise SessionError(answer.error)
        plan = BlockPlan({**self._base, **point}, point)
        while True:
            counted = [step for step in worker.trial_steps if step.arm == arm and step.kind == 0]
            if plan.complete(counted):
                return list(plan.trimmed(counted))
            await worker.next_steps()

    async def _stand_still(self) -> None:
        """The worker that has been running, before another runs. If it is gone, its own settings hear of it at their next turn."""
        if self._running is not None:
            with contextlib.suppress(WorkerGone):
                await self._running.pause()
        self._running = None

    async def _worker(self, point: Knobs) -> WorkerHandle:
        """The one that has the cold knobs of `point`, started when it is first needed. Raises WorkerGone, SessionError."""
        key = self._key(point)
        if key not in self._workers:
            await self._stand_still()
            knobs = {**self._base, **point}
            nproc = int(knobs.get("nproc", 1))
            module = SERVING if self._chosen.workload.serves else TRAINING
            worker = WorkerHandle(lambda event: None, lambda worker, code: None, Launch(nproc) if nproc > 1 else None, module)
            self._workers[key] = worker
            await worker.launch()
            worker.start(self._chosen.workload.name, knobs, self._device, self._serving.options)
            try:
                async with asyncio.timeout(START_S):
                    await worker.next_steps()
            except TimeoutError:
                raise SessionError(f"no step within {START_S:.0f} s") from None
            await worker.pause()
        worker = self._workers[key]
        if not worker.alive:
            raise WorkerGone(worker.cause())
        notes = worker.last_started.notes if worker.last_started is not None else {}
        idle = [f"{name} has no effect: {notes[NO_EFFECT + name]}" for name in point if NO_EFFECT + name in notes]
        if idle:
            raise SessionError("; ".join(idle))
        return worker
