"""One worker child as the engine uses it: start a workload, change knobs, run probes, pause and resume."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine.device import Device
from gpuconsole.model.run import Step
from gpuconsole.processes.child import STOP_S, Child
from gpuconsole.processes.ranked import Launch, RankedChild
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
    SetKnobs,
    Start,
    Started,
    Steps,
    Stop,
)

SCRATCH = "gpuconsole-scratch-"
TRAINING = "gpuconsole.workloads.worker"
SERVING = "gpuconsole.workloads.serving.worker"
SERVING_STOP_S = 15.0
"""A model server of its own needs some time to end well."""


class WorkerGone(RuntimeError):
    """The worker ended while something was expected of it; the message says how."""


class WorkerHandle:
    """A worker process with a scratch folder of its own, which goes away with it.

    Events go to `listener`, which the engine exchanges as the worker's role changes (spare, running, challenger).
    """

    def __init__(
        self,
        listener: Callable[[AnyEvent], None],
        on_exit: Callable[[WorkerHandle, int], None],
        launch: Launch | None = None,
        module: str = TRAINING,
    ) -> None:
        """`launch`: several processes by torchrun, in place of one. `module`: what runs, TRAINING or SERVING."""
        self.listener = listener
        self._launch, self._module = launch, module
        self.failed: Failed | None = None
        self.progress: Progress | None = None
        self.last_started: Started | None = None
        self._on_exit = on_exit
        self._scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-"))
        self._request = 0
        self._answers: dict[int, asyncio.Future[AnyEvent]] = {}
        self._steps_heard = asyncio.Event()
        self.trial_steps: list[Step] = []
        self.joined: list[RankJoined] = []
        self.probed: list[str] = []
        self._child: Child
        if launch is None:
            self._child = Child(module, ["--scratch", str(self._scratch)], self._heard, self._exited)
        else:
            self._child = RankedChild(launch, self._scratch, self._heard, self._exited)

    async def launch(self) -> None:
        await self._child.start()

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
        """What its processes are doing, where there have been no steps for long."""
        return self._child.hanging if isinstance(self._child, RankedChild) else ""

    def start(self, workload: str, knobs: Knobs, device: Device, options: dict[str, str] | None = None) -> None:
        """`options` are for serving workloads, see `Start`."""
        self._child.send(Start(workload, knobs, device.id, device.uuid if self._launch is None else "", options=options or {}))

    async def set_knobs(self, changes: Knobs, arm: int) -> KnobsSet:
        """Put hot changes in force; the answer tells from which step, or why not. Raises WorkerGone."""
        answer = await self._ask(lambda request: SetKnobs(request, changes, arm))
        assert isinstance(answer, KnobsSet)
        return answer

    async def probe(self, name: str) -> ProbeDone:
        """Run a probe. Raises WorkerGone."""
        answer = await self._ask(lambda request: RunProbe(request, name))
        assert isinstance(answer, ProbeDone)
        self.probed.append(name)
        return answer

    async def profile(self, steps: int, keep: str) -> Profiled:
        """Profile `steps` steps and keep the trace at `keep`. Raises WorkerGone."""
        answer = await self._ask(lambda request: Profile(request, steps, keep))
        assert isinstance(answer, Profiled)
        return answer

    async def pause(self) -> None:
        """Have it stand still; returns once its last step is done, on the device too. Raises WorkerGone."""
        await self._ask(Pause)

    def resume(self, arm: int) -> None:
        self._child.send(Resume(arm))

    async def next_steps(self) -> None:
        """Wait until more steps have been reported. Raises WorkerGone."""
        if not self.alive:
            raise WorkerGone(self.cause())
        self._steps_heard.clear()
        waiting = [asyncio.ensure_future(self._steps_heard.wait()), asyncio.ensure_future(self._child.exited.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        if not self._steps_heard.is_set():
            raise WorkerGone(self.cause())

    async def stop(self) -> None:
        await self._child.stop(Stop(), SERVING_STOP_S if self._module == SERVING else STOP_S)
        self._clean()

    def kill(self) -> None:
        self._child.kill()

    def cause(self) -> str:
        """Why the worker is gone, in one line."""
        return self.failed.cause if self.failed else "the worker process ended unexpectedly"

    async def _ask(self, command: Callable[[int], SetKnobs | RunProbe | Profile | Pause]) -> AnyEvent:
        if not self.alive:
            raise WorkerGone(self.cause())
        self._request += 1
        answer: asyncio.Future[AnyEvent] = asyncio.get_running_loop().create_future()
        self._answers[self._request] = answer
        self._child.send(command(self._request))
        return await answer

    def _heard(self, event: AnyEvent) -> None:
        self.listener(event)
        if isinstance(event, KnobsSet | ProbeDone | Profiled | Paused):
            answer = self._answers.pop(event.request, None)
            if answer is not None and not answer.done():
                answer.set_result(event)
        elif isinstance(event, Steps):
            if not self.leads(event.rank):
                return
            self.trial_steps += [step for step in event.steps if step.arm]
            self._steps_heard.set()
        elif isinstance(event, Failed):
            self.failed = event
        elif isinstance(event, Progress):
            self.progress = event
        elif isinstance(event, Started):
            self.last_started = event
        elif isinstance(event, RankJoined):
            self.joined.append(event)

    def leads(self, rank: int) -> bool:
        """Whether the steps of `rank` stand for the run's."""
        return all(joined.leads for joined in self.joined if joined.rank == rank)

    def _exited(self, code: int) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(WorkerGone(self.cause()))
        self._answers.clear()
        self._clean()
        self._on_exit(self, code)

    def _clean(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)


def death(code: int, worker: WorkerHandle) -> str:
    """How a worker died that could not say so itself."""
    words = next((line for line in reversed(worker.last_words) if line.strip()), "")
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (the kernel's out-of-memory killer does this)" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}{hint}" + (f"; its last words: {words}" if words else "")
    return f"the worker ended with exit code {code}" + (f"; its last words: {words}" if words else "")


def sweep_scratch() -> None:
    """Remove the scratch folders of consoles that were killed and could not do it themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        owner = folder.name.removeprefix(SCRATCH).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
