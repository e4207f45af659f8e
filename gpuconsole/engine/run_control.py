"""Starts, stops and changes the run. One lock: one action at a time on the workload."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuconsole.engine import catalog
from gpuconsole.engine.children.job import JobCommand
from gpuconsole.engine.children.pool import WorkerPool, ignore
from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.engine.children.worker import WorkerGone, WorkerHandle, ending
from gpuconsole.engine.devices import ChosenDevices, SecondaryRoom
from gpuconsole.host.files import make_writable_folder
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import KnobError, Knobs, check_knobs, describe_changes
from gpuconsole.model.machine import Device
from gpuconsole.model.profile import ProfileReport
from gpuconsole.model.run import Run, RunState
from gpuconsole.model.scenario import Scenario, ScenarioError, job_scenario, watched_scenario
from gpuconsole.model.serving import CLIENT_WAIT
from gpuconsole.model.text import without_credentials
from gpuconsole.session.api import Busy, SessionError
from gpuconsole.session.run import RunRecord
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import AnyEvent, RunClosed, RunOpened


class RunLock:
    """Allows one action at a time on the workload: a probe, a change, a trial, a profile, or the
    start or end of a run.

    A start or an end goes first: it breaks off the present action, and no other action begins
    before it. `activity` names the present measurement for the screen; empty if there is none.
    """

    def __init__(self) -> None:
        self.activity = ""
        self.changing = False
        """Whether a change, a trial or a profile holds the lock or waits for it."""
        self.asked: Knobs = {}
        """The changes of a trial that was asked for and has not begun."""
        self._lock = asyncio.Lock()
        self._ending = 0

    def locked(self) -> bool:
        return self._lock.locked()

    @contextlib.asynccontextmanager
    async def probe(self, name: str) -> AsyncIterator[None]:
        """Hold the lock for a probe. Raises Busy when the run ends."""
        async with self._lock:
            self._check_not_ending()
            with self.showing(name):
                yield

    @contextlib.asynccontextmanager
    async def change(self, asked: Knobs | None = None) -> AsyncIterator[None]:
        """Hold the lock for a change, a trial or a profile; a probe is waited for. `asked`: the
        changes of a trial. Raises Busy when another change is under way."""
        if self.changing:
            raise Busy("a trial, a change or a profile is under way")
        self.changing, self.asked = True, asked or {}
        try:
            async with self._lock:
                self._check_not_ending()
                yield
        finally:
            self.changing, self.asked = False, {}

    @contextlib.asynccontextmanager
    async def end(self, cancel_actions: Callable[[], None]) -> AsyncIterator[None]:
        """Hold the lock for the end of a run, and for the start of another. `cancel_actions` ends
        the action that holds the lock."""
        self._ending += 1
        try:
            cancel_actions()
            async with self._lock:
                yield
        finally:
            self._ending -= 1

    @contextlib.contextmanager
    def showing(self, activity: str) -> Iterator[None]:
        """Show an activity on the screen."""
        self.activity = activity
        try:
            yield
        finally:
            self.activity = ""

    def _check_not_ending(self) -> None:
        if self._ending:
            raise Busy("the run is being ended")


class RunPlan(NamedTuple):
    """A run to start, checked. `overrides` are the knobs that the user set; `knobs` are all
    settings. `command`: the user's own job. `serving`: where it is not that of the session."""

    scenario: Scenario
    overrides: Knobs
    knobs: Knobs
    device: Device
    command: JobCommand | None = None
    serving: ServingChoice | None = None


class RunControl:
    """Owns the worker of the current run, and the second worker of an experiment.

    The functions in `on_open` and `on_close` are called for each run that begins or ends. The
    functions in `on_cancel` are called before the run ends: an experiment that holds the lock has
    to give it back soon.
    """

    def __init__(
        self,
        state: SessionState,
        emit: Callable[[AnyEvent], None],
        pool: WorkerPool,
        lock: RunLock,
        serving: ServingChoice,
        devices: ChosenDevices,
    ) -> None:
        self.worker: WorkerHandle | None = None
        self.second: WorkerHandle | None = None
        self.overrides: Knobs = {}
        self.lock = lock
        self._state, self._emit, self._pool = state, emit, pool
        self._given = self._serving = serving
        self._devices = devices
        self.on_open: list[Callable[[RunRecord], None]] = []
        self.on_close: list[Callable[[RunRecord], None]] = []
        self.on_cancel: list[Callable[[], None]] = []
        self._scenario: Scenario | None = None
        self._command: JobCommand | None = None
        self._kept: list[tuple[Knobs, Knobs]] = []
        """Kept changes of the current scenario: the knobs before, the knobs after."""
        self._closing = False

    def running(self) -> tuple[RunRecord, WorkerHandle]:
        """The current run and its worker. Raises SessionError when nothing is running."""
        record = self._state.record
        if record is None or self.worker is None or record.run.state != "running":
            raise SessionError("nothing is running")
        return record, self.worker

    # --- start and end ----------------------------------------------------------------------------

    def plan(self, name: str, overrides: Knobs) -> RunPlan:
        """Check a scenario and its overrides; nothing is started. Raises SessionError. `name`: also
        the address of a server to watch."""
        if "://" in name:
            other = ServingChoice({"server_url": name, "watch": "yes"})
            return RunPlan(
                watched_scenario(without_credentials(name)),
                {},
                {},
                self._devices.first(),
                serving=None if name == self._given.watched else other,
            )
        try:
            chosen = catalog.find_scenario(name)
            overrides = check_knobs(dict(overrides), chosen.workload.knobs, chosen.name)
        except (ScenarioError, KnobError) as error:
            raise SessionError(str(error)) from None
        device = self._devices.first()
        knobs = {**chosen.knobs_on(device), **overrides}
        knobs |= self._given.left_to_server(chosen, knobs, overrides)
        self._given.check_torch(chosen, knobs)
        return RunPlan(chosen, overrides, knobs, device)

    def plan_job(self, command: JobCommand) -> RunPlan:
        """A run of the user's own command. Its knobs are known once it trains. Raises
        SessionError."""
        return RunPlan(job_scenario(command.name), {}, {}, self._devices.first(), command)

    async def start(self, plan: RunPlan) -> None:
        """End the current run and start another."""
        async with self.lock.end(self._cancel_actions):
            await self._end("stopped")
            self.overrides, self._scenario, self._command = (
                plan.overrides,
                plan.scenario,
                plan.command,
            )
            self._kept.clear()
            self._serving = plan.serving or self._given
            self._open(plan.knobs, plan.device, {})
            try:
                if plan.command is None:
                    self.worker = worker = await self._pool.take(
                        plan.scenario, plan.knobs, self._devices
                    )
                else:
                    self.worker = worker = await self._pool.start_job(plan.command)
            except OSError as error:
                self._close(
                    "failed",
                    (
                        f"{plan.command.words[0] if plan.command else 'the worker'} could not be"
                        f" started: {error}"
                    ),
                )
                return
            if worker.progress is not None:
                self._emit(worker.progress)
            worker.listener = self._emit
            worker.start(
                plan.scenario.workload.name,
                plan.knobs,
                plan.device,
                self._serving.options,
                self._devices.of_server(plan.knobs),
            )

    async def end_run(self, state: RunState, error: str | None = None) -> None:
        """End the current run as `state`; a trial on it is broken off. A worker that hangs is
        killed."""
        async with self.lock.end(self._cancel_actions):
            await self._end(state, error)

    async def close(self) -> None:
        """Kill all workers at once."""
        self._closing = True
        second = self.second
        self._cancel_actions()
        self._close("stopped")
        workers = [
            worker for worker in (self.worker, second, self._pool.spare) if worker is not None
        ]
        for worker in workers:
            worker.kill()
        self._pool.close()
        for worker in workers:
            await worker.stop()

    def worker_ended(self, worker: WorkerHandle, code: int) -> None:
        """Close the run of a worker that ended on its own. `code` is its exit code."""
        if worker is not self.worker or self._closing:
            return
        self.worker = None
        self._close(*ending(code, worker))

    def _cancel_actions(self) -> None:
        """Make the action that holds the lock give it back soon, also when the worker hangs."""
        if self.worker is not None:
            self.worker.release()
        for cancel_actions in self.on_cancel:
            cancel_actions()

    async def _end(self, state: RunState, error: str | None = None) -> None:
        if self.worker is None:
            return
        worker, self.worker = self.worker, None
        if state == "finished" and worker.hanging:
            state, error = "failed", worker.hanging
        try:
            await worker.stop()
        except asyncio.CancelledError:
            worker.kill()
            raise
        finally:
            self._close(state, error)

    def _open(self, knobs: Knobs, device: Device, changes: Knobs) -> None:
        assert self._scenario is not None
        run, scenario = str(len(self._state.records) + 1), self._scenario
        objective = self._serving.objective if scenario.workload.serves else None
        elsewhere = scenario.workload.serves and self._serving.elsewhere
        opened = RunOpened(
            time.monotonic(),
            run,
            scenario.name,
            scenario.workload.name,
            knobs,
            device.id,
            changes,
            objective,
            elsewhere,
            gpus=() if elsewhere else self._devices.of_server(knobs),
        )
        self._emit(opened if self._command is None else self._command.identify(opened))
        record = self._state.record
        assert record is not None
        for call in self.on_open:
            call(record)
        self._pool.hold("run")

    def _close(self, state: RunState, error: str | None = None) -> None:
        record = self._state.record
        if record is not None and record.closed_t is None:
            self._emit(RunClosed(time.monotonic(), record.run.id, state, error))
            for call in self.on_close:
                call(record)
            self._pool.release("run")

    # --- changes ----------------------------------------------------------------------------------

    async def set_knobs(self, changes: Knobs) -> None:
        """Apply live changes without proof. Raises SessionError."""
        record, worker = self.running()
        if record.run.watched:
            raise SessionError(
                "a server that is only watched keeps no change: try the limit, and restart the"
                " server with it"
            )
        changes = _effective(changes, record.run)
        if not record.run.applies_live(changes):
            raise SessionError(
                f"{describe_changes(changes)} needs a restart of the worker: try it as a trial"
            )
        before = {name: record.run.knobs[name] for name in changes}
        async with self.lock.change():
            await self._change(worker, changes)
            self._kept.append((before, changes))

    @property
    def undo(self) -> Knobs:
        """The values that `revert` would bring back; empty where there is nothing that it could
        take back."""
        record = self._state.record
        if not self._kept or record is None or record.run.state != "running":
            return {}
        before, _ = self._kept[-1]
        return before if record.run.applies_live(before) else {}

    async def revert(self) -> None:
        """Undo the last change that was kept, or applied without a trial. Raises SessionError."""
        record, worker = self.running()
        if not self._kept:
            raise SessionError("nothing to revert: no change was kept")
        before, _ = self._kept[-1]
        if not record.run.applies_live(before):
            raise SessionError(
                f"{describe_changes(before)} needed a restart: start the scenario again to go back"
            )
        async with self.lock.change():
            await self._change(worker, before)
            self._kept.pop()

    async def _change(self, worker: WorkerHandle, changes: Knobs) -> None:
        try:
            answer = await worker.set_knobs(changes, 0)
        except WorkerGone as gone:
            raise SessionError(str(gone)) from None
        if answer.error:
            raise SessionError(answer.error)
        self._open_next(changes, worker)

    def _open_next(self, changes: Knobs, worker: WorkerHandle) -> None:
        """A change is kept: the run ends, and the same work goes on as the next run."""
        record = self._state.record
        if record is None or record.closed_t is not None:
            return
        device = next(
            (device for device in self._state.devices if device.id == record.run.device),
            Device(record.run.device, ""),
        )
        self._close("finished")
        self._open(worker.knobs, device, changes)
        for event in (*worker.joined, worker.last_started, worker.last_server):
            if event is not None:
                self._emit(msgspec.structs.replace(event, t=time.monotonic()))

    # --- experiments ------------------------------------------------------------------------------

    def check_trial(self, changes: Knobs) -> Knobs:
        """`changes` without those that change nothing. Raises SessionError where they cannot be
        tried on the current run."""
        record, _ = self.running()
        if record.run.watched:
            self._serving.check_change(changes, record.run)
        changes = _effective(changes, record.run)
        if self._pool.nodes.nnodes > 1 and not record.run.applies_live(changes):
            raise SessionError(
                f"{', '.join(changes)}: the processes on the other machines would have to restart:"
                " run again with --set"
            )
        self._serving.check_change(changes, record.run)
        return changes

    def secondary_room(self, run: Run, worker: WorkerHandle) -> SecondaryRoom:
        """The device's memory, for a second worker beside the paused `worker` of `run`."""
        return SecondaryRoom(self._state, run, worker)

    async def start_second(self, knobs: Knobs) -> WorkerHandle:
        """Start a second worker on the work of the current run, with `knobs`. Its events are not
        part of the session. Raises OSError, SessionError."""
        assert self._scenario is not None
        device = self._devices.first()
        self.second = worker = await self._pool.take(self._scenario, knobs, self._devices)
        gpus = self._devices.of_server(knobs)
        worker.start(self._scenario.workload.name, knobs, device, self._serving.options, gpus)
        return worker

    def hand_over(self) -> None:
        """Make the second worker the worker of the run, and the worker of the run the second
        worker."""
        assert self.second is not None
        if self.worker is not None:
            self.worker.listener = ignore
        self.worker, self.second = self.second, self.worker
        self.worker.listener = self._emit

    async def end_second(self) -> None:
        """End the second worker, if there is one."""
        if self.second is not None:
            await self.second.stop()
        self.second = None

    def keep(self, before: Knobs, changes: Knobs) -> None:
        """The worker runs with `changes` from now on. `before`: the values of these knobs that
        `revert` restores."""
        self._kept.append((before, changes))
        if self.worker is not None:  # it may have ended while the other worker was stopped
            self._open_next(changes, self.worker)

    async def fail(self, reason: str) -> None:
        """End the current run as failed. The caller holds the lock."""
        await self._end("failed", reason)

    async def profile(self, steps: int, rank: int, folder: Path | None) -> ProfileReport:
        """Profile `steps` steps, in the process `rank` of a user's job of several; the trace goes
        into `folder`, else into the current folder. Raises SessionError."""
        async with self.lock.change():
            record, worker = self.running()
            with self.lock.showing("profiler"):
                return await _profile(worker, steps, rank, record.run.scenario, folder)

    async def probe_server(self) -> dict[str, Signal]:
        """Send the requests of the probe to the watched server; what they show. Raises
        SessionError."""
        record, _ = self.running()
        if not record.run.watched:
            raise SessionError(
                "no server is watched: the probes of a run of ours start by themselves"
            )
        async with self.lock.change():
            _, worker = self.running()
            try:
                with self.lock.showing(CLIENT_WAIT):
                    answer = await worker.probe(CLIENT_WAIT)
            except WorkerGone as gone:
                raise SessionError(str(gone)) from None
        if answer.error:
            raise SessionError(f"probe: {answer.error}")
        return answer.signals


async def _profile(
    worker: WorkerHandle, steps: int, rank: int, scenario: str, folder: Path | None
) -> ProfileReport:
    """Profile `steps` steps; the worker writes the trace. Raises SessionError."""
    try:
        target = trace_path(scenario, folder)
        make_writable_folder(target.parent)
        answer = await worker.profile(steps, rank, str(target))
    except OSError as error:
        raise SessionError(
            f"{folder or 'the current folder'}: cannot be written: {error.strerror}"
        ) from None
    except WorkerGone:
        raise SessionError("the run ended before its profile was there") from None
    if answer.report is None:
        raise SessionError(answer.error or "no profile")
    return answer.report


def trace_path(scenario: str, folder: Path | None) -> Path:
    """A file named after the scenario and the time. Absolute, because the worker has its own
    current folder."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", scenario)
    return (
        folder or Path()
    ).absolute() / f"gpuconsole-trace-{name}-{time.strftime('%Y%m%d-%H%M%S')}.json.gz"


def _effective(changes: Knobs, run: Run) -> Knobs:
    """See `Run.effective`. Raises SessionError."""
    try:
        return run.effective(changes)
    except KnobError as error:
        raise SessionError(str(error)) from None
