"""The console's handle of a worker child: start a workload, change knobs, run probes, pause and
resume."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuconsole.engine.children.child import STOP_S, Child
from gpuconsole.engine.children.job import JobChild, JobCommand, JoinedJob
from gpuconsole.engine.children.signals import signal_name
from gpuconsole.engine.children.torchrun import Launch, TorchrunChild
from gpuconsole.host.folders import Scratch, data_folder, runtime_folder
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.run import RunState, Step
from gpuconsole.wire.events import (
    AnyEvent,
    Failed,
    KnobsSet,
    Pause,
    Paused,
    ProbeDone,
    Profile,
    Profiled,
    Progress,
    RankJoined,
    Resume,
    RunProbe,
    ServerKnown,
    SetKnobs,
    Start,
    Started,
    Steps,
    Stop,
    confirmed_knobs,
    leads,
)

TRAINING = "gpuconsole.workloads.worker"
SERVING = "gpuconsole.workloads.serving.worker"
SERVING_STOP_S = 15.0
"""Seconds between the request to stop and the kill. A model server needs some time to end
cleanly."""
START_S = 300.0
SERVER_START_S = 1260.0
"""Seconds within which a worker makes its first step. A large model takes minutes to load and
compile; the serving worker itself gives up after 1200 s (`READY_S` in
workloads/serving/servers.py)."""
RELEASED = "the run was ended"


class WorkerGone(RuntimeError):
    """The worker ended, or its run was ended, before an answer came; the message is one line."""


class WorkerHandle:
    """A worker process with a private folder, which is removed when the worker ends.

    Each event goes to `listener`. The owner replaces the listener when the worker's role changes
    (spare, running, challenger).
    """

    def __init__(
        self,
        listener: Callable[[AnyEvent], None],
        on_exit: Callable[[WorkerHandle, int], None],
        launch: Launch | None = None,
        module: str = TRAINING,
        job: JobCommand | None = None,
    ) -> None:
        """`launch`: start several processes by torchrun in place of one. `module`: TRAINING or
        SERVING. `job`: start this command of the user's own in place of a worker."""
        self.listener = listener
        self._launch, self._module = launch, module
        self.failed: Failed | None = None
        self.progress: Progress | None = None
        self.last_started: Started | None = None
        self.last_server: ServerKnown | None = None
        self.knobs: Knobs = {}
        """The knobs that the worker last confirmed."""
        self._on_exit = on_exit
        self._scratches = [Scratch(data_folder())]
        self._request = 0
        self._answers: dict[int, asyncio.Future[AnyEvent]] = {}
        self._new_steps = asyncio.Event()
        self._released = asyncio.Event()
        self.trial_steps: list[Step] = []
        """The leading rank's steps on a side of a trial, since the owner last cleared the list. All
        ranks made them with the knobs of the last change."""
        self._in_force_from = 0
        """The first step that all ranks make with the knobs of the last change."""
        self.joined: list[RankJoined] = []
        self.probed: list[str] = []
        self.allows_numerics = job is not None and job.allows_numerics
        """Whether the user has agreed to changes that alter the numbers of the user's own job."""
        self.allows_loader = job is not None and job.allows_loader
        """Whether the user has agreed to new workers of the job's DataLoader."""
        self._child: Child
        self.job: JobChild | None = None
        if job is not None:
            in_memory = Scratch(runtime_folder())
            self._scratches.append(in_memory)
            kind = JoinedJob if job.joins else JobChild
            self._child = self.job = kind(job, in_memory.path, self._on_event, self._exited)
        elif launch is None:
            self._child = Child(
                module, ["--scratch", str(self._scratches[0].path)], self._on_event, self._exited
            )
        else:
            self._child = TorchrunChild(
                launch, self._scratches[0].path, self._on_event, self._exited
            )

    async def launch(self) -> None:
        """Start the process. Raises OSError."""
        await self._child.start()

    @property
    def start_limit_s(self) -> float:
        """Seconds within which the first steps are expected."""
        return SERVER_START_S if self._module == SERVING else START_S

    @property
    def alive(self) -> bool:
        return self._child.alive

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def last_words(self) -> list[str]:
        return list(self._child.last_words)

    @property
    def hanging(self) -> str:
        """What each process is doing, where several processes have made no step for long; else
        empty."""
        return self._child.hanging if isinstance(self._child, TorchrunChild) else ""

    def start(
        self,
        workload: str,
        knobs: Knobs,
        device: Device,
        options: dict[str, str] | None = None,
        gpus: tuple[str, ...] = (),
    ) -> None:
        """Start a workload. `options` and `gpus` are for serving workloads, see `Start`. A user's
        job starts itself."""
        if self.job is None:
            self._child.send(
                Start(
                    workload,
                    knobs,
                    device.id,
                    device.uuid if self._launch is None else "",
                    options=options or {},
                    gpus=gpus,
                )
            )

    async def set_knobs(self, changes: Knobs, arm: int) -> KnobsSet:
        """Apply live changes. The answer holds the first step with them, or the error. Raises
        WorkerGone."""
        numerics, loader = self.allows_numerics, self.allows_loader
        answer = await self._ask(
            lambda request: SetKnobs(request, changes, arm, numerics=numerics, loader=loader)
        )
        assert isinstance(answer, KnobsSet)
        return answer

    async def probe(self, name: str) -> ProbeDone:
        """Run a probe. Raises WorkerGone."""
        answer = await self._ask(lambda request: RunProbe(request, name))
        assert isinstance(answer, ProbeDone)
        self.probed.append(name)
        return answer

    async def profile(self, steps: int, rank: int, keep: str) -> Profiled:
        """Profile `steps` steps and keep the trace at `keep`. `rank`: see `SessionApi.profile`.
        Raises WorkerGone."""
        answer = await self._ask(lambda request: Profile(request, steps, keep, rank))
        assert isinstance(answer, Profiled)
        return answer

    async def pause(self) -> None:
        """Pause; returns once the last step is done, on the device too. Raises WorkerGone."""
        await self._ask(Pause)

    def resume(self, arm: int) -> None:
        self._child.send(Resume(arm))

    async def next_steps(self) -> None:
        """Wait for the next report of steps. Raises WorkerGone."""
        self._check_available()
        self._new_steps.clear()
        waiting = [
            asyncio.ensure_future(event.wait())
            for event in (self._new_steps, self._child.exited, self._released)
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        if not self._new_steps.is_set():
            raise WorkerGone(self.cause())

    def release(self) -> None:
        """Answer all callers that wait for the worker, now and later, with WorkerGone. So a worker
        that hangs blocks no caller."""
        self._released.set()
        self._refuse_all(WorkerGone(self.cause()))

    async def stop(self) -> None:
        """Release all callers, then end the process: by request, and by force if it does not follow
        in time."""
        self.release()
        await self._child.stop(Stop(), SERVING_STOP_S if self._module == SERVING else STOP_S)
        self._close_scratches()

    def kill(self) -> None:
        """End the process and its children soon. A model server has a moment to remove its shared
        memory; training ends at once."""
        if self._module == SERVING:
            self._child.hang_up()
        else:
            self._child.kill()

    def cause(self) -> str:
        """Why the worker does not answer any more, in one line."""
        if self.failed is not None:
            return self.failed.cause
        return RELEASED if self._released.is_set() else "the worker process ended unexpectedly"

    async def _ask(
        self, command: Callable[[int], SetKnobs | RunProbe | Profile | Pause]
    ) -> AnyEvent:
        self._check_available()
        self._request += 1
        answer: asyncio.Future[AnyEvent] = asyncio.get_running_loop().create_future()
        self._answers[self._request] = answer
        self._child.send(command(self._request))
        return await answer

    def _check_available(self) -> None:
        if not self.alive or self._released.is_set():
            raise WorkerGone(self.cause())

    def _refuse_all(self, gone: WorkerGone) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(gone)
        self._answers.clear()

    def _on_event(self, event: AnyEvent) -> None:
        self.knobs = confirmed_knobs(event) or self.knobs
        if isinstance(event, KnobsSet) and not event.error:
            self._in_force_from = event.step
            self.trial_steps[:] = [step for step in self.trial_steps if step.index >= event.step]
        self.listener(event)
        if isinstance(event, KnobsSet | ProbeDone | Profiled | Paused):
            answer = self._answers.pop(event.request, None)
            if answer is not None and not answer.done():
                answer.set_result(event)
        elif isinstance(event, Steps):
            if not self.leads(event.rank):
                return
            self.trial_steps += [
                step for step in event.steps if step.arm and step.index >= self._in_force_from
            ]
            self._new_steps.set()
        elif isinstance(event, Failed):
            self.failed = event
        elif isinstance(event, Progress):
            self.progress = event
        elif isinstance(event, Started):
            self.last_started = event
        elif isinstance(event, ServerKnown):
            self.last_server = event
        elif isinstance(event, RankJoined):
            self.joined.append(event)

    def leads(self, rank: int) -> bool:
        """Whether the steps of `rank` stand for the run's."""
        return leads(self.joined, rank)

    def _exited(self, code: int) -> None:
        self._refuse_all(WorkerGone(self.cause()))
        self._close_scratches()
        self._on_exit(self, code)

    def _close_scratches(self) -> None:
        for scratch in self._scratches:
            scratch.close()


def ending(code: int, worker: WorkerHandle) -> tuple[RunState, str | None]:
    """The state of the run of a worker, or of a user's job, that has ended on its own; and the
    error, in one line."""
    if worker.job is not None:
        return worker.job.ending(code)
    if worker.failed is not None or code != 0:
        return "failed", worker.cause() if worker.failed else death(code, worker)
    return "finished", None


def death(code: int, worker: WorkerHandle) -> str:
    """How a worker ended that did not report the cause itself, in one line. `code` is the exit
    code, or minus the signal."""
    last_line = next((line for line in reversed(worker.last_words) if line.strip()), "")
    if code < 0:
        name = signal_name(-code)
        hint = " (the kernel's out-of-memory killer does this)" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}{hint}" + (
            f"; its last output: {last_line}" if last_line else ""
        )
    return f"the worker ended with exit code {code}" + (
        f"; its last output: {last_line}" if last_line else ""
    )
