"""The live engine: connects child processes, session and diagnosis. `experiments/session.py` makes
it a whole `SessionApi`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from gpuconsole import __version__
from gpuconsole.engine import catalog
from gpuconsole.engine.background import BackgroundTasks, watch_self
from gpuconsole.engine.children.early import EarlyChild
from gpuconsole.engine.children.job import JobCommand
from gpuconsole.engine.children.pool import SPARE_S, WorkerPool
from gpuconsole.engine.children.sampler import SamplerSupervisor
from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.engine.children.signals import send_signal
from gpuconsole.engine.children.torchrun import Launch
from gpuconsole.engine.children.worker import WorkerHandle
from gpuconsole.engine.devices import ChosenDevices
from gpuconsole.engine.diagnosis_loop import DiagnosisLoop
from gpuconsole.engine.job import ScreenJob, start_on_terminal
from gpuconsole.engine.reader import StateReader, write_snapshot
from gpuconsole.engine.recording import SessionRecorder
from gpuconsole.engine.run_control import RunControl, RunLock
from gpuconsole.host.environment import fingerprint, installed_torch, unusable_gpus
from gpuconsole.host.folders import sweep_scratch
from gpuconsole.host.listening import PortReader
from gpuconsole.host.torch_build import Driver, TorchBuild
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device, Process
from gpuconsole.model.profile import STEPS, ProfileReport
from gpuconsole.model.run import RunState
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.api import RemoteApi, SessionError, View
from gpuconsole.session.jobs import Ports
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import prelude
from gpuconsole.wire.events import (
    AnyEvent,
    DeviceKnown,
    Devices,
    EnvironmentKnown,
    Hello,
    Note,
    without_credentials,
)

DEVICES_S = 3.0
"""Seconds that `open` waits for the list of devices."""


class Engine(StateReader):
    """One live session without experiments. All methods run on one event loop, and none blocks it.
    Methods of SessionApi are documented there.

    `listeners` receive every event. Each of `services` begins when the session opens, and is
    cancelled when it closes. The functions in `before_close` are awaited when all runs have ended,
    before the recording is complete.
    """

    def __init__(
        self,
        interval_s: float = 1.0,
        device: str | None = None,
        *,
        price_per_hour: float | None = None,
        dcgm: str | None = None,
        nodes: Launch | None = None,
        serving: ServingChoice | None = None,
        spare_s: float = SPARE_S,
        sampler: EarlyChild | None = None,
    ) -> None:
        """`dcgm`: the address of a dcgm-exporter. `price_per_hour`: the price of the machine.
        `sampler`: the first sampler, where it runs already.

        `nodes`: the rendezvous of processes on several machines. `serving`: the model server, and
        the latencies its requests must keep. `spare_s`: seconds for which an unused spare worker
        stays.
        """
        super().__init__()
        self.state = SessionState(interval_s)
        self.listeners: list[Callable[[AnyEvent], None]] = []
        self.services: list[Callable[[], Coroutine[Any, Any, None]]] = [
            lambda: watch_self(self.emit)
        ]
        self.before_close: list[Callable[[], Awaitable[None]]] = []
        self.job: ScreenJob | None = None
        self.remote: RemoteApi | None = None
        self.profile_dir: Path | None = None
        self.recording_lost = ""
        """Why the recording ended early, or has no end; empty where all is well."""
        self._price_per_hour, self._wanted_device = price_per_hour, device
        lock = RunLock()
        self._pool = WorkerPool(nodes or Launch(1), self._worker_ended, self.note, spare_s)
        self.devices = ChosenDevices(self.state, device)
        self.control = RunControl(
            self.state, self.emit, self._pool, lock, serving or ServingChoice(), self.devices
        )
        self.diagnosis = DiagnosisLoop(self.state, self.emit, lambda: self.control.worker, lock)
        self.control.on_close.append(self.diagnosis.ended)
        self.services.append(self.diagnosis.run)
        self._sampler = SamplerSupervisor(interval_s, dcgm, self.emit, sampler)
        self._recorder = SessionRecorder()
        self.background = BackgroundTasks(self.emit)
        self._port_reader = PortReader()
        self._devices_known = asyncio.Event()
        self._closing = False
        self._unusable: set[str] = set()
        """The reasons why torch cannot use GPUs, of which the user has a note."""

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        sweep_scratch()
        self.emit(Hello(time.monotonic(), "runtime", os.getpid(), __version__, time.time()))
        await self._sampler.start()
        for service in self.services:
            self.background.start(service())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._devices_known.wait(), DEVICES_S)
        if not self._devices_known.is_set():
            self.emit(
                Note(
                    time.monotonic(),
                    "the driver does not answer; the console continues without it",
                    "warning",
                )
            )
        self.emit(EnvironmentKnown(time.monotonic(), self.environment()))

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self.background.cancel()
        if self.job is not None:
            await self.job.close()
        ending = asyncio.create_task(self.control.close())
        await self._sampler.close()
        await ending
        for finish in self.before_close:
            await finish()
        self.recording_lost = self._recorder.close() or self.recording_lost

    async def keep_warm(self, wanted: bool) -> None:
        if not wanted:
            self._pool.release("choosing")
        elif not self._closing and not self.control.lock.changing:
            await self._pool.warm("choosing")

    # --- reading ----------------------------------------------------------------------------------

    def view(self) -> View:
        device = self._wanted_device or self.device().id
        view = self.build_view(
            device=device,
            probing=self.control.lock.activity,
            recording=False,
            recording_to=self._recorder.path,
            ended=False,
        )
        activity = self.remote.activity if self.remote is not None else ""
        return msgspec.structs.replace(
            view, asked=self.control.lock.asked, undo=self.control.undo, remote=activity
        )

    def environment(self) -> Environment:
        """The machine as it is now, with the calibration of the chosen device. Raises SessionError
        where that device does not exist."""
        device = self._wanted_device or self.device().id
        environment = fingerprint(self.state.devices, self.state.driver, self.state.cuda, device)
        return msgspec.structs.replace(environment, price_per_hour=self._price_per_hour)

    def device(self) -> Device:
        """The device of the next run: the device that the user chose, else the first GPU, else the
        CPU. Raises SessionError."""
        return self.devices.first()

    def scenarios(self) -> list[Scenario]:
        by_name, mistakes = catalog.scenarios()
        for mistake in mistakes:
            self.emit(Note(time.monotonic(), mistake, "warning"))
        return list(by_name.values())

    # --- runs and changes -------------------------------------------------------------------------

    async def before_end(self) -> None:
        """Awaited before a run ends by a call of this engine: for what drives the run."""

    def check_free(self) -> None:
        """Called before a change. Raises SessionError where something else drives the run."""

    async def start(self, scenario: str, overrides: Knobs) -> None:
        if self.job is not None and not self.job.ended:
            raise SessionError(f"{self.job.about} runs: end the job first")
        plan = self.control.plan(scenario, overrides)
        await self.before_end()
        await self.control.start(plan)

    async def start_job(self, command: JobCommand) -> WorkerHandle:
        """Start the user's own command as a run. Raises SessionError, also where the command cannot
        be started."""
        await self.before_end()
        await self.control.start(self.control.plan_job(command))
        worker = self.control.worker
        if worker is None or worker.job is None:
            raise SessionError(
                (self.state.record and self.state.record.run.error)
                or f"{command.words[0]} has ended already"
            )
        worker.job.on_process = lambda process: self._note_unusable(
            TorchBuild(process.torch, process.cuda), "of the job"
        )
        return worker

    async def start_job_on_terminal(
        self,
        command: JobCommand,
        columns: int,
        rows: int,
        output: Path | None,
        *,
        new: bool = False,
    ) -> None:
        """Start the user's own command on a terminal of its own, see `start_on_terminal`. Raises
        SessionError."""
        self.job = await start_on_terminal(
            self.start_job, command, columns, rows, output, new, self.diagnosis
        )

    async def stop(self) -> None:
        await self.end_run("stopped")

    async def end_run(self, state: RunState, error: str | None = None) -> None:
        await self.before_end()
        await self.control.end_run(state, error)

    async def set_knobs(self, changes: Knobs) -> None:
        self.check_free()
        await self.control.set_knobs(changes)

    async def revert(self) -> None:
        self.check_free()
        await self.control.revert()

    def probe_only_for(self, knobs: Collection[str]) -> None:
        self.diagnosis.tunable = knobs

    async def profile(self, steps: int = STEPS, rank: int = 0) -> ProfileReport:
        record = self.state.record
        if record is not None and record.run.is_job and not self.diagnosis.may_probe_jobs:
            raise SessionError(
                "the profiler in a job of your own needs your permission: P, or --probe"
            )
        return await self.control.profile(steps, rank, self.profile_dir)

    async def probe_server(self) -> dict[str, Signal]:
        return await self.control.probe_server()

    # --- files and signals ------------------------------------------------------------------------

    def signal_process(self, process: Process, number: int) -> None:
        send_signal(process, number)

    def ports(self, pids: Collection[int]) -> Ports:
        return self._port_reader.of(pids)

    def export(self, path: Path | None = None) -> Path:
        return write_snapshot(self.snapshot(), path)

    def toggle_recording(self, path: Path | None = None) -> Path | None:
        last_started = self.control.worker.last_started if self.control.worker else None
        return self._recorder.toggle(
            path, prelude(self.state, self.environment(), last_started, time.monotonic())
        )

    def note(self, text: str) -> None:
        """Add a line for the user, which a recording keeps too."""
        self.emit(Note(time.monotonic(), text))

    # --- events -----------------------------------------------------------------------------------

    def emit(self, event: AnyEvent) -> None:
        """The only place where the session changes."""
        event = without_credentials(event)
        self.state.apply(event)
        for listener in self.listeners:
            listener(event)
        if isinstance(event, Devices | DeviceKnown):
            self._devices_known.set()
            self._note_unusable(installed_torch(), "here")
            if self.state.environment.host:  # it was read without these devices
                self.emit(EnvironmentKnown(event.t, self.environment()))
        if (said := self._recorder.write(event)) is not None:
            self.state.apply(said)
            if not self._recorder.path:  # said at the end
                self.recording_lost = said.text
            for listener in self.listeners if self._recorder.path else ():
                listener(said)

    def _note_unusable(self, torch: TorchBuild | None, whose: str) -> None:
        """A warning, once, for GPUs that this torch cannot use. A build without CUDA was chosen for
        the CPU: that is no warning."""
        if torch is None or not torch.cuda:
            return
        for why, ids in unusable_gpus(
            torch, Driver(self.state.driver or "", self.state.cuda), self.state.devices
        ).items():
            if why not in self._unusable:
                self._unusable.add(why)
                self.emit(
                    Note(
                        time.monotonic(),
                        f"torch {whose} cannot use {', '.join(ids)}: {why}",
                        "warning",
                    )
                )

    def _worker_ended(self, worker: WorkerHandle, code: int) -> None:
        self.control.worker_ended(worker, code)
