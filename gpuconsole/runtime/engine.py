"""The live engine: children, session, diagnosis and trials behind the `Front`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import psutil

from gpuconsole import __version__
from gpuconsole.export.files import write_whole
from gpuconsole.model.device import Device
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs import CATALOGUE, KnobError, Knobs, check_knobs, describe_changes
from gpuconsole.model.run import RunState
from gpuconsole.model.scenario import Scenario, ScenarioError
from gpuconsole.model.snapshot import Environment, Snapshot, encode
from gpuconsole.model.trial import Trial
from gpuconsole.runtime import catalog
from gpuconsole.runtime.child import Child
from gpuconsole.runtime.diagnosing import Diagnosing
from gpuconsole.runtime.environment import fingerprint, torch_version
from gpuconsole.runtime.front import FrontError, View
from gpuconsole.runtime.run_record import RunRecord
from gpuconsole.runtime.store import Store
from gpuconsole.runtime.trials import START_S, OneWorker, Sides, TrialFailed, TwoWorkers, run_trial
from gpuconsole.runtime.viewing import bucketed, make_snapshot, make_view
from gpuconsole.runtime.worker_handle import WorkerGone, WorkerHandle, death
from gpuconsole.wire.events import (
    AnyEvent,
    DeviceLost,
    Devices,
    EnvironmentKnown,
    Hello,
    Note,
    RunClosed,
    RunOpened,
    Sample,
    TrialUpdate,
)
from gpuconsole.wire.recording import RecordingWriter

SAMPLER_RESTARTS = 3
DEVICES_S = 5.0
NO_TORCH = 'torch is not installed: pip install "gpuconsole[torch]" (monitoring works without it)'


class Engine:
    """One session. Everything happens on one event loop; nothing here blocks it."""

    def __init__(self, interval_s: float = 1.0, device: str | None = None) -> None:
        self.store = Store()
        self._interval_s = interval_s
        self._wanted_device = device
        self._sampler: Child | None = None
        self._sampler_failures = 0
        self._spare: WorkerHandle | None = None
        self._worker: WorkerHandle | None = None
        self._scenario: Scenario | None = None
        self._recorder: RecordingWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = asyncio.Lock()
        self._trying = False
        self._diagnosing = Diagnosing(self.store, self._emit, lambda: self._worker, self._busy)
        self._kept: list[tuple[Knobs, Knobs]] = []
        self._next_run = 1
        self._next_trial = 1
        self._closing = False
        self._devices_known = asyncio.Event()
        self._process = psutil.Process()

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start watching; returns once the devices are known."""
        self._emit(Hello(time.monotonic(), "runtime", os.getpid(), __version__, time.time()))
        await self._start_sampler()
        self._in_background(self._watch_self())
        self._in_background(self._diagnosing.forever())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._devices_known.wait(), DEVICES_S)
        if not self._devices_known.is_set():
            self._emit(Note(time.monotonic(), "the driver does not answer; going on without it", "warning"))
        self._emit(EnvironmentKnown(time.monotonic(), self.environment()))

    async def warm(self) -> None:
        """Keep a worker ready that has torch imported."""
        if self._spare is None and not self._closing:
            self._spare = await self._launch_worker()

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        self._close_run("stopped")
        workers = [worker for worker in (self._worker, self._spare) if worker is not None]
        for worker in workers:
            worker.kill()
        if self._sampler is not None:
            self._sampler.kill()
            await self._sampler.exited.wait()
        for worker in workers:
            await worker.stop()
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def environment(self) -> Environment:
        return fingerprint(self.store.devices, self.store.driver)

    def device(self) -> Device:
        """What runs use: the device asked for, else the first GPU, else the CPU."""
        devices = self.store.devices or [Device("cpu", "host CPU")]
        wanted = self._wanted_device
        if wanted is not None:
            for device in devices:
                if device.id == wanted:
                    return device
            raise FrontError(f"there is no device {wanted!r}; there are: {', '.join(device.id for device in devices)}")
        return next((device for device in devices if device.is_gpu and device.id not in self.store.lost), devices[-1])

    # --- the Front ------------------------------------------------------------------------------------------

    def view(self) -> View:
        self.store.now = time.monotonic()
        return make_view(
            self.store,
            environment=self.environment() if not self.store.environment.host else self.store.environment,
            device=self._wanted_device or self.device().id,
            probing=self._diagnosing.probing,
            recording=False,
            recording_to=str(self._recorder.path) if self._recorder else "",
            ended=False,
        )

    def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
        return bucketed(self.store, key, columns, seconds)

    def points(self, key: str) -> tuple[list[float], list[float]]:
        series = self.store.series.get(key)
        return series.points() if series else ([], [])

    def scenarios(self) -> list[Scenario]:
        found, mistakes = catalog.scenarios()
        for mistake in mistakes:
            self._emit(Note(time.monotonic(), mistake, "warning"))
        return list(found.values())

    async def start(self, scenario: str, overrides: Knobs) -> None:
        try:
            chosen = catalog.find_scenario(scenario)
            overrides = check_knobs(dict(overrides), chosen.workload.knobs, chosen.name)
        except (ScenarioError, KnobError) as error:
            raise FrontError(str(error)) from None
        if torch_version() is None:
            raise FrontError(NO_TORCH)
        device = self.device()
        await self.stop()
        knobs = {**chosen.knobs_for("gpu" if device.is_gpu else "cpu"), **overrides}
        self._scenario = chosen
        self._kept.clear()
        self._open_run(knobs, device.id, {})
        await self.warm()
        self._worker, self._spare = self._spare, None
        assert self._worker is not None
        if self._worker.progress is not None:
            self._emit(self._worker.progress)
        self._worker.listener = self._emit
        if not self._worker.alive:
            self._worker_ended(self._worker, 1)
            return
        self._worker.start(chosen.workload.name, knobs, device.id)

    async def stop(self) -> None:
        await self.end_run("stopped")

    async def end_run(self, state: RunState) -> None:
        """End the run that runs, if any, as `state`."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.stop()
            self._close_run(state)

    async def set_knobs(self, changes: Knobs) -> None:
        record, worker = self._running()
        changes = self._checked(changes, record)
        if any(CATALOGUE[name].apply == "cold" for name in changes):
            raise FrontError(f"{describe_changes(changes)} needs a restart of the worker: try it as a trial")
        before = {name: record.run.knobs[name] for name in changes}
        async with self._exclusive():
            answer = await worker.set_knobs(changes, 0)
            if answer.error:
                raise FrontError(answer.error)
            self._kept.append((before, changes))
            self._next(changes)

    async def try_change(self, changes: Knobs, predicted: Interval | None = None) -> Trial:
        record, _ = self._running()
        changes = self._checked(changes, record)
        async with self._exclusive():
            return await self._try(record, changes, predicted)

    async def revert(self) -> None:
        _, worker = self._running()
        if not self._kept:
            raise FrontError("nothing to revert: no change was kept")
        before, changes = self._kept[-1]
        if any(CATALOGUE[name].apply == "cold" for name in changes):
            raise FrontError(f"{describe_changes(changes)} needed a restart: start the scenario again to go back")
        async with self._exclusive():
            answer = await worker.set_knobs(before, 0)
            if answer.error:
                raise FrontError(answer.error)
            self._kept.pop()
            self._next(before)

    def snapshot(self) -> Snapshot:
        self.store.now = max(self.store.now, time.monotonic())
        return make_snapshot(self.store, self.environment())

    def export(self, path: Path | None = None) -> Path:
        target = path or Path(f"gpuconsole-{time.strftime('%Y%m%d-%H%M%S')}.json")
        try:
            write_whole(target, encode(self.snapshot()))
        except OSError as error:
            raise FrontError(f"{target}: cannot be written: {error.strerror}") from None
        return target

    def toggle_recording(self, path: Path | None = None) -> Path | None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
            return None
        target = path or Path(f"gpuconsole-{time.strftime('%Y%m%d-%H%M%S')}.jsonl")
        try:
            self._recorder = RecordingWriter(target)
        except OSError as error:
            raise FrontError(f"{target}: cannot be written: {error.strerror}") from None
        for event in self._prelude():
            self._recorder.write(event)
        return target

    # --- events ---------------------------------------------------------------------------------------------

    def _emit(self, event: AnyEvent) -> None:
        """The one place where the session changes."""
        self.store.apply(event)
        if isinstance(event, Devices):
            self._devices_known.set()
        if self._recorder is not None:
            try:
                self._recorder.write(event)
            except OSError as error:
                path, self._recorder = self._recorder.path, None
                self.store.apply(Note(time.monotonic(), f"recording to {path} ended: {error.strerror}", "error"))

    def _prelude(self) -> list[AnyEvent]:
        """What a recording that begins in mid-session must hold first."""
        now = time.monotonic()
        store = self.store
        events: list[AnyEvent] = [Devices(now, store.devices, store.driver, store.no_gpu_reason), EnvironmentKnown(now, self.environment())]
        events += [DeviceLost(now, device, reason) for device, reason in store.lost.items()]
        if store.record is not None:
            run = store.record.run
            events.append(RunOpened(now, run.id, run.scenario, run.workload, run.knobs, run.device))
        return events

    # --- children -------------------------------------------------------------------------------------------

    async def _start_sampler(self) -> None:
        self._sampler = Child("gpuconsole.telemetry.sampler", ["--interval", str(self._interval_s)], self._emit, self._sampler_ended)
        await self._sampler.start()

    def _sampler_ended(self, code: int) -> None:
        if self._closing:
            return
        words = list(self._sampler.last_words)[-1:] if self._sampler else []
        self._sampler_failures += 1
        self._emit(Note(time.monotonic(), f"the sampler ended (exit {code}): {' '.join(words)}", "error"))
        if self._sampler_failures <= SAMPLER_RESTARTS:
            self._in_background(self._start_sampler())

    async def _launch_worker(self) -> WorkerHandle:
        worker = WorkerHandle(lambda event: None, self._worker_ended)
        await worker.launch()
        return worker

    def _worker_ended(self, worker: WorkerHandle, code: int) -> None:
        if worker is self._spare and worker.alive is False and code == 0:
            self._spare = None
        if worker is not self._worker or self._closing:
            return
        self._worker = None
        if worker.failed is not None or code != 0:
            self._close_run("failed", worker.cause() if worker.failed else death(code, worker))
        else:
            self._close_run("finished")

    def _running(self) -> tuple[RunRecord, WorkerHandle]:
        record = self.store.record
        if record is None or self._worker is None or record.run.state != "running":
            raise FrontError("nothing is running")
        return record, self._worker

    @contextlib.asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Probes, trials and changes exclude each other. Raises FrontError for a worker's end in the midst of it."""
        if self._trying:
            raise FrontError("a trial is under way")
        self._trying = True
        try:
            async with self._busy:
                yield
        except WorkerGone as gone:
            raise FrontError(str(gone)) from None
        finally:
            self._trying = False

    def _checked(self, changes: Knobs, record: RunRecord) -> Knobs:
        try:
            checked = check_knobs(dict(changes), tuple(record.run.knobs), record.run.scenario)
        except KnobError as error:
            raise FrontError(str(error)) from None
        changed = {name: value for name, value in checked.items() if record.run.knobs[name] != value}
        if not changed:
            raise FrontError(f"{describe_changes(checked)}: already so")
        return changed

    # --- runs and trials ------------------------------------------------------------------------------------

    def _open_run(self, knobs: Knobs, device: str, changes: Knobs) -> None:
        assert self._scenario is not None
        run, self._next_run = str(self._next_run), self._next_run + 1
        scenario = self._scenario
        self._emit(RunOpened(time.monotonic(), run, scenario.name, scenario.workload.name, knobs, device, changes))
        self._diagnosing.begin()

    def _close_run(self, state: RunState, error: str | None = None) -> None:
        record = self.store.record
        if record is not None and record.closed_t is None:
            self._emit(RunClosed(time.monotonic(), record.run.id, state, error))

    def _next(self, changes: Knobs) -> None:
        """A change is kept: this run ends, and the same work goes on as the next."""
        record = self.store.record
        assert record is not None
        self._close_run("finished")
        self._open_run({**record.run.knobs, **changes}, record.run.device, changes)

    async def _try(self, record: RunRecord, changes: Knobs, predicted: Interval | None) -> Trial:
        assert self._worker is not None
        trial = Trial(id=str(self._next_trial), baseline_run=record.run.id, changes=changes, predicted=predicted)
        self._next_trial += 1
        before = {name: record.run.knobs[name] for name in changes}
        baseline, challenger = self._worker, None
        self._on_trial(trial)
        try:
            if any(CATALOGUE[name].apply == "cold" for name in changes):
                challenger = await self._launch_challenger({**record.run.knobs, **changes}, record.run.device)
                sides: Sides = TwoWorkers(baseline, challenger)
            else:
                sides = OneWorker(baseline, record.run.knobs, changes)
            trial = await run_trial(trial, record.run.knobs, sides, self._on_trial)
        except (TrialFailed, WorkerGone) as error:
            trial = msgspec.structs.replace(trial, state="failed", verdict="undecided", error=str(error))
        except asyncio.CancelledError:
            self._on_trial(msgspec.structs.replace(trial, state="failed", verdict="undecided", error="interrupted"))
            raise
        kept = trial.verdict == "win"
        trial = msgspec.structs.replace(trial, kept=kept)
        await self._settle(trial, baseline, challenger, before)
        return trial

    async def _settle(self, trial: Trial, baseline: WorkerHandle, challenger: WorkerHandle | None, before: Knobs) -> None:
        """Leave the better side running and tell the verdict."""
        if challenger is not None:
            loser = baseline if trial.kept else challenger
            self._worker = challenger if trial.kept else baseline
            if trial.kept:
                baseline.listener = lambda event: None
                challenger.listener = self._emit
            await loser.stop()
            self._worker.resume(0)
        elif baseline.alive:
            with contextlib.suppress(WorkerGone):
                await baseline.set_knobs(trial.changes if trial.kept else before, 0)
        self._on_trial(trial)
        if trial.kept:
            self._kept.append((before, trial.changes))
            self._next(trial.changes)

    async def _launch_challenger(self, knobs: Knobs, device: str) -> WorkerHandle:
        """A second worker with other knobs, past its start, waiting. Raises TrialFailed."""
        assert self._scenario is not None
        challenger = self._spare or await self._launch_worker()
        self._spare = None
        challenger.start(self._scenario.workload.name, knobs, device)
        try:
            async with asyncio.timeout(START_S):
                await challenger.next_steps()
        except (TimeoutError, WorkerGone):
            cause = challenger.cause() if not challenger.alive else f"not running after {START_S:.0f} s"
            await challenger.stop()
            raise TrialFailed(f"{describe_changes(knobs)}: {cause}" if not challenger.failed else cause) from None
        challenger.pause()
        return challenger

    def _on_trial(self, trial: Trial) -> None:
        self._emit(TrialUpdate(time.monotonic(), trial))

    # --- in the background ----------------------------------------------------------------------------------

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._closing:
            self._emit(Note(time.monotonic(), f"internal error: {task.exception()!r}", "error"))

    async def _watch_self(self) -> None:
        """What the console costs: its own CPU share and memory, once a second."""
        before = sum(self._process.cpu_times()[:2])
        since = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            now, used = time.monotonic(), sum(self._process.cpu_times()[:2])
            share = (used - before) / (now - since)
            values = {"console.cpu_ratio": share, "console.memory_bytes": float(self._process.memory_info().rss)}
            self._emit(Sample(now, "console", values))
            before, since = used, now
