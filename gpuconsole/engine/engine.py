"""The live engine: children, session, diagnosis and trials behind the `SessionApi`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

import msgspec

from gpuconsole import __version__
from gpuconsole.engine import catalog
from gpuconsole.engine.background import Background, wait_out
from gpuconsole.engine.diagnosis_loop import Diagnosing
from gpuconsole.engine.profile import take_window
from gpuconsole.engine.reader import StateReader, write_snapshot
from gpuconsole.engine.recorder import Recorder
from gpuconsole.engine.watch_baseline import Comparing, Keeps
from gpuconsole.experiments.trial import START_S, USUAL, OneWorker, Sides, TrialFailed, TrialLimits, TwoWorkers, run_trial, with_quality
from gpuconsole.experiments.tune import TUNE_S, TuningSession
from gpuconsole.machine.environment import DeviceChoiceError, choose_device, fingerprint, watch_self
from gpuconsole.model.experiments.certificate import Certificate
from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import KnobError, Knobs, check_knobs, describe_changes
from gpuconsole.model.machine.device import Device
from gpuconsole.model.machine.process import Process
from gpuconsole.model.profile import STEPS, ProfileReport
from gpuconsole.model.run import Run, RunState
from gpuconsole.model.scenario import Scenario, ScenarioError
from gpuconsole.model.snapshot import Environment
from gpuconsole.processes.pool import WorkerPool, ignore
from gpuconsole.processes.sampler import SamplerSupervisor
from gpuconsole.processes.scratch import sweep_scratch
from gpuconsole.processes.serving import ServingChoice
from gpuconsole.processes.signals import send_signal
from gpuconsole.processes.torchrun import Launch
from gpuconsole.processes.worker import WorkerGone, WorkerHandle, death
from gpuconsole.session.api import Busy, SessionError, View
from gpuconsole.session.run import RunRecord
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import prelude
from gpuconsole.wire.events import AnyEvent, Devices, EnvironmentKnown, Hello, Note, RunClosed, RunOpened, TrialUpdate

DEVICES_S = 3.0


class Engine(StateReader):
    """One session. Everything happens on one event loop; nothing here blocks it."""

    def __init__(
        self,
        interval_s: float = 1.0,
        device: str | None = None,
        *,
        price_per_hour: float | None = None,
        dcgm: str | None = None,
        keeps: Keeps = "chosen",
        nodes: Launch | None = None,
        serving: ServingChoice | None = None,
    ) -> None:
        """`dcgm` is the address of a dcgm-exporter, `price_per_hour` what the machine costs, `keeps` which runs become baselines.

        `nodes`: where processes on several machines meet. `serving`: which model server, and what its requests must keep.
        """
        self._workers = WorkerPool(nodes or Launch(1), self._worker_ended, self.note)
        self._serving = serving or ServingChoice()
        super().__init__()
        self.state = SessionState(interval_s)
        self.listeners: list[Callable[[AnyEvent], None]] = []
        self._price_per_hour = price_per_hour
        self._wanted_device = device
        self._sampling = SamplerSupervisor(interval_s, dcgm, self._emit)
        self._worker: WorkerHandle | None = None
        self._scenario: Scenario | None = None
        self._recorder = Recorder()
        self._background = Background(self._emit)
        self._busy = asyncio.Lock()
        self._lifecycle = asyncio.Lock()
        self._trial: asyncio.Task[Trial] | None = None
        self._trial_over = asyncio.Event()
        self._challenger: WorkerHandle | None = None
        self._trying = False
        self._diagnosing = Diagnosing(self.state, self._emit, lambda: self._worker, self._busy)
        self.comparing = Comparing(self.state, self._emit, keeps)
        self._kept: list[tuple[Knobs, Knobs]] = []
        self._given: Knobs = {}
        self._closing = False
        self._tuning = TuningSession(self, self._emit)
        self.profile_dir: Path | None = None
        self._devices_known = asyncio.Event()

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start watching; returns once the devices are known."""
        sweep_scratch()
        self._emit(Hello(time.monotonic(), "runtime", os.getpid(), __version__, time.time()))
        await self._sampling.start()
        self._background.start(watch_self(self._emit))
        self._background.start(self._diagnosing.forever())
        self._background.start(self.comparing.forever())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._devices_known.wait(), DEVICES_S)
        if not self._devices_known.is_set():
            self._emit(Note(time.monotonic(), "the driver does not answer; going on without it", "warning"))
        self._emit(EnvironmentKnown(time.monotonic(), self.environment()))

    async def warm(self) -> None:
        """Keep a worker ready that has torch imported."""
        if not self._closing:
            await self._workers.warm()

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._background.cancel()
        self._tuning.close()
        if self._trial is not None:
            self._trial.cancel()
        self._close_run("stopped")
        workers = [worker for worker in (self._worker, self._workers.spare, self._challenger) if worker is not None]
        for worker in workers:
            worker.kill()
        await self._sampling.close()
        for worker in workers:
            await worker.stop()
        await self.comparing.settled()
        self._recorder.close()

    def environment(self) -> Environment:
        return msgspec.structs.replace(
            fingerprint(self.state.devices, self.state.driver, self.state.cuda, self._wanted_device or self.device().id),
            price_per_hour=self._price_per_hour,
        )

    def device(self) -> Device:
        """What runs use: the device asked for, else the first GPU, else the CPU."""
        try:
            return choose_device(self.state.devices, self._wanted_device, self.state.lost)
        except DeviceChoiceError as error:
            raise SessionError(str(error)) from None

    # --- the SessionApi ------------------------------------------------------------------------------------------

    def view(self) -> View:
        return self.build_view(
            device=self._wanted_device or self.device().id,
            probing=self._diagnosing.probing,
            recording=False,
            recording_to=self._recorder.path,
            ended=False,
        )

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
            raise SessionError(str(error)) from None
        device = self.device()
        knobs = {**chosen.knobs_for("gpu" if device.is_gpu else "cpu"), **overrides}
        self._serving.check_torch(chosen, knobs)
        await self._tuning.finish()
        async with self._lifecycle:
            await self._end_run("stopped")
            self._given = overrides
            await self._start(chosen, knobs, device)

    async def _start(self, chosen: Scenario, knobs: Knobs, device: Device) -> None:
        self._scenario = chosen
        self._kept.clear()
        self._open_run(knobs, device.id, {})
        self._worker = await self._workers.take(chosen, knobs)
        if self._worker.progress is not None:
            self._emit(self._worker.progress)
        self._worker.listener = self._emit
        self._worker.start(chosen.workload.name, knobs, device, self._serving.options)

    async def stop(self) -> None:
        await self.end_run("stopped")

    async def end_run(self, state: RunState, error: str | None = None) -> None:
        """End the run that runs, if any, as `state`; a trial on it is broken off."""
        await self._tuning.finish()
        async with self._lifecycle:
            await self._end_run(state, error)
        await self.comparing.settled()

    async def _end_run(self, state: RunState, error: str | None = None) -> None:
        if self._trial is not None:
            self._trial.cancel()
            await self._trial_over.wait()
        if self._worker is not None:
            worker, self._worker = self._worker, None
            if state == "finished" and worker.hanging:
                state, error = "failed", worker.hanging
            await worker.stop()
            self._close_run(state, error)

    async def set_knobs(self, changes: Knobs) -> None:
        self._tuning.check_free()
        record, worker = self._running()
        changes = _effective(changes, record.run)
        if not record.run.applies_live(changes):
            raise SessionError(f"{describe_changes(changes)} needs a restart of the worker: try it as a trial")
        before = {name: record.run.knobs[name] for name in changes}
        async with self._exclusive():
            await self._change(worker, changes)
            self._kept.append((before, changes))

    async def _change(self, worker: WorkerHandle, changes: Knobs) -> None:
        answer = await worker.set_knobs(changes, 0)
        if answer.error:
            raise SessionError(answer.error)
        self._next(changes, worker)

    def probe_only_for(self, knobs: Collection[str]) -> None:
        """No probes but those that may lead to a change of one of these, lest they keep it waiting. (): all, in the usual order."""
        self._diagnosing.tunable = knobs

    async def try_change(
        self, changes: Knobs, predicted: Interval | None = None, *, keep: bool = True, limits: TrialLimits = USUAL
    ) -> Trial:
        """As the SessionApi says. Without `keep` it is only measured: the run goes on as it was."""
        self._tuning.check_free()
        record, _ = self._running()
        changes = _effective(changes, record.run)
        if self._workers.nodes.nnodes > 1 and not record.run.applies_live(changes):
            raise SessionError(f"{', '.join(changes)}: the other machines' processes would have to start anew: run again with --set")
        self._serving.check_change(changes, record.run)
        async with self._exclusive():
            record, _ = self._running()  # it may have ended while a probe held the lock
            return await self._try(record, changes, predicted, keep, limits)

    async def tune(self, budget_s: float = TUNE_S) -> Certificate:
        record, _ = self._running()
        if self._trying:
            raise Busy("a trial, a change or a profile is under way: let it end first")
        return await self._tuning.run(record.run.scenario, self._given, budget_s)

    def end_tuning(self) -> None:
        self._tuning.end()

    async def profile(self, steps: int = STEPS) -> ProfileReport:
        async with self._exclusive():
            record, worker = self._running()
            with self._diagnosing.showing("profiler"):
                return await take_window(worker, record.run.scenario, steps, self.profile_dir)

    async def revert(self) -> None:
        self._tuning.check_free()
        record, worker = self._running()
        if not self._kept:
            raise SessionError("nothing to revert: no change was kept")
        before, _ = self._kept[-1]
        if not record.run.applies_live(before):
            raise SessionError(f"{describe_changes(before)} needed a restart: start the scenario again to go back")
        async with self._exclusive():
            await self._change(worker, before)
            self._kept.pop()

    async def keep_baseline(self) -> str:
        return await self.comparing.keep()

    def signal_process(self, process: Process, number: int) -> None:
        send_signal(process, number)

    def export(self, path: Path | None = None) -> Path:
        return write_snapshot(self.snapshot(), path)

    def toggle_recording(self, path: Path | None = None) -> Path | None:
        last_started = self._worker.last_started if self._worker else None
        return self._recorder.toggle(path, prelude(self.state, self.environment(), last_started, time.monotonic()))

    def note(self, text: str) -> None:
        """One line for the person at the screen, and for a recording."""
        self._emit(Note(time.monotonic(), text))

    # --- events ---------------------------------------------------------------------------------------------

    def _emit(self, event: AnyEvent) -> None:
        """The one place where the session changes."""
        self.state.apply(event)
        for listener in self.listeners:
            listener(event)
        if isinstance(event, Devices):
            self._devices_known.set()
            if self.state.environment.host:  # what was known of the machine was without these devices
                self._emit(EnvironmentKnown(event.t, self.environment()))
        if ended := self._recorder.write(event):
            self.state.apply(Note(time.monotonic(), ended, "error"))

    # --- children -------------------------------------------------------------------------------------------

    def _worker_ended(self, worker: WorkerHandle, code: int) -> None:
        if worker is not self._worker or self._closing:
            return
        self._worker = None
        if worker.failed is not None or code != 0:
            self._close_run("failed", worker.cause() if worker.failed else death(code, worker))
        else:
            self._close_run("finished")

    def _running(self) -> tuple[RunRecord, WorkerHandle]:
        record = self.state.record
        if record is None or self._worker is None or record.run.state != "running":
            raise SessionError("nothing is running")
        return record, self._worker

    @contextlib.asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Probes, trials, changes and profiles exclude each other. Raises SessionError for a worker's end in the midst of it."""
        if self._trying:
            raise Busy("a trial, a change or a profile is under way")
        self._trying = True
        try:
            async with self._busy:
                yield
        except WorkerGone as gone:
            raise SessionError(str(gone)) from None
        finally:
            self._trying = False

    # --- runs and trials ------------------------------------------------------------------------------------

    def _open_run(self, knobs: Knobs, device: str, changes: Knobs) -> None:
        assert self._scenario is not None
        run, scenario = str(len(self.state.records) + 1), self._scenario
        objective = self._serving.objective if scenario.workload.serves else None
        self._emit(RunOpened(time.monotonic(), run, scenario.name, scenario.workload.name, knobs, device, changes, objective))
        self._diagnosing.begin()
        self.comparing.begin(scenario, next((one for one in self.state.devices if one.id == device), Device(device, "")))

    def _close_run(self, state: RunState, error: str | None = None) -> None:
        record = self.state.record
        if record is not None and record.closed_t is None:
            self._emit(RunClosed(time.monotonic(), record.run.id, state, error))
            self.comparing.ended(record)

    def _next(self, changes: Knobs, worker: WorkerHandle) -> None:
        """A change is kept: this run ends, and the same work goes on as the next."""
        record = self.state.record
        if record is None or record.closed_t is not None:
            return
        self._close_run("finished")
        self._open_run({**record.run.knobs, **changes}, record.run.device, changes)
        for said in (*worker.joined, worker.last_started):
            if said is not None:
                self._emit(msgspec.structs.replace(said, t=time.monotonic()))

    async def _try(self, record: RunRecord, changes: Knobs, predicted: Interval | None, keep: bool, limits: TrialLimits) -> Trial:
        _, baseline = self._running()
        trial = Trial(id=str(len(self.state.trials) + 1), baseline_run=record.run.id, changes=changes, predicted=predicted)
        self._on_trial(trial)
        self._trial_over.clear()
        self._trial = asyncio.create_task(self._run_trial(trial, record, baseline, keep, limits))
        try:
            trial = await asyncio.shield(self._trial)
        except asyncio.CancelledError:
            self._trial.cancel()
            await asyncio.wait([self._trial])
            trial = msgspec.structs.replace(trial, state="failed", verdict="undecided", error="broken off")
        finally:
            self._trial = None
            challenger, self._challenger = self._challenger, None
            broken_off = await wait_out(asyncio.create_task(self._settle(trial, record, baseline, challenger)))
            self._trial_over.set()
        task = asyncio.current_task()
        if broken_off or (task is not None and task.cancelling()):
            raise asyncio.CancelledError
        return trial

    async def _run_trial(self, trial: Trial, record: RunRecord, baseline: WorkerHandle, keep: bool, limits: TrialLimits) -> Trial:
        """The measured trial, with its verdict. Cold knobs get a second worker, the first standing still as it starts."""
        run = self.run_now(record)
        try:
            sides: Sides = OneWorker(baseline, run.knobs, trial.changes)
            if not record.run.applies_live(trial.changes):
                trial = msgspec.structs.replace(trial, method=TwoWorkers.method)
                self._on_trial(trial)
                await baseline.pause()
                await self._launch_challenger({**run.knobs, **trial.changes})
                assert self._challenger is not None
                sides = workers = TwoWorkers(baseline, self._challenger)
                if not run.serves:
                    with self._diagnosing.showing("in the second process too"):
                        await workers.age_alike()
            trial = await run_trial(trial, run, sides, self._on_trial, limits)
            trial = await with_quality(trial, sides)
        except (TrialFailed, WorkerGone) as error:
            trial = msgspec.structs.replace(trial, state="failed", verdict="undecided", error=str(error))
        return msgspec.structs.replace(trial, kept=keep and trial.worth_keeping)

    async def _settle(self, trial: Trial, record: RunRecord, baseline: WorkerHandle, challenger: WorkerHandle | None) -> None:
        """Leave the better side running and tell the verdict."""
        before = {name: record.run.knobs[name] for name in trial.changes}
        winner = challenger if challenger is not None and trial.kept else baseline
        if challenger is not None and winner is not challenger:
            await challenger.stop()
        if not record.run.applies_live(trial.changes):
            if winner is challenger:
                self._worker = challenger
                baseline.listener, challenger.listener = ignore, self._emit
                await baseline.stop()
            winner.resume(0)
        elif baseline.alive and not self._closing:
            with contextlib.suppress(WorkerGone):
                await baseline.set_knobs(trial.changes if trial.kept else before, 0)
        self._on_trial(trial)
        if trial.kept:
            self._kept.append((before, trial.changes))
            self._next(trial.changes, winner)

    async def _launch_challenger(self, knobs: Knobs) -> None:
        """A second worker with other knobs, past its start, waiting. Raises TrialFailed."""
        assert self._scenario is not None
        self._challenger = challenger = await self._workers.take(self._scenario, knobs)
        challenger.start(self._scenario.workload.name, knobs, self.device(), self._serving.options)
        try:
            async with asyncio.timeout(START_S):
                await challenger.next_steps()
        except (TimeoutError, WorkerGone):
            raise TrialFailed(challenger.cause() if not challenger.alive else f"not running after {START_S:.0f} s") from None
        await challenger.pause()

    def _on_trial(self, trial: Trial) -> None:
        self._emit(TrialUpdate(time.monotonic(), trial))


def _effective(changes: Knobs, run: Run) -> Knobs:
    """See `Run.effective`. Raises SessionError."""
    try:
        return run.effective(changes)
    except KnobError as error:
        raise SessionError(str(error)) from None
