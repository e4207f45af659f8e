"""What the agent does between two steps: it takes commands, answers them, and sends the steps."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from .clock import now
from .inbox import Inbox
from .loop import Loop
from .probes import ProbeError
from .protocol import (
    Channel,
    Command,
    Pause,
    Profile,
    Resume,
    RunProbe,
    SetKnobs,
    Stop,
    Value,
    message,
)
from .reporter import Reporter
from .world import PlainError, World

PAUSED = "the worker is paused"
FULL_PIPE_S = 0.01
"""Between two attempts to send what a full pipe had no room for."""


class Profiler(Protocol):
    """Takes profiler windows and sends the answers itself."""

    def take(self, command: Profile) -> None: ...

    def poll(self) -> None:
        """Send the answer if the analysis of a window has ended."""
        ...

    def close(self) -> None: ...


class Service:
    """Serves the console on behalf of one loop. In a world of several processes each has a Service; the leader's answers for all.

    `announce` sends what the workload says of itself under its present knobs; it is called in the leader only, at the start and after a
    change. `profiler` makes the profiler at its first use; without it profiler windows are refused. `max_steps` 0: no limit.

        service.begin()
        while service.between_steps():
            loop.step()
        service.end()
    """

    def __init__(
        self,
        loop: Loop,
        inbox: Inbox,
        channel: Channel,
        world: World | None = None,
        announce: Callable[[], None] | None = None,
        profiler: Callable[[], Profiler] | None = None,
        max_steps: int = 0,
    ) -> None:
        self._loop = loop
        self._inbox = inbox
        self._channel = channel
        self._world = world or World()
        self._announce_workload = announce
        self._make_profiler = profiler
        self._profiler: Profiler | None = None
        self._max_steps = max_steps
        self._stopping = False
        self.reporter = Reporter(loop, channel, self._world.rank)

    def begin(self) -> None:
        """Call this before the first step."""
        self._announce()
        self._loop.forget_peak_memory()
        self._loop.account.restart()

    def between_steps(self) -> bool:
        """Send what is due and serve the commands that have come. Returns whether another step follows."""
        account = self._loop.account
        if account.index and self.reporter.due():
            self.reporter.send()
            if self._profiler is not None:
                self._profiler.poll()
        while not self._stopping and not (self._max_steps and account.index >= self._max_steps):
            command = self._inbox.poll()
            if command is None:
                return True
            self.serve(command)
        return False

    def end(self) -> None:
        """Call this after the last step."""
        if self._profiler is not None:
            self._profiler.close()
        self._loop.account.finish()
        self.reporter.send()

    def serve(self, command: Command) -> None:
        """Carry out `command`. The steps before it are sent first."""
        self._loop.account.finish()
        self.reporter.send()
        if isinstance(command, Stop):
            self._stopping = True
        elif isinstance(command, SetKnobs):
            self._set_knobs(command)
        elif isinstance(command, RunProbe):
            self._probe(command)
        elif isinstance(command, Profile):
            self._profile(command)
        elif isinstance(command, Pause):
            self._wait_for_resume(command)
        elif isinstance(command, Resume):
            self._loop.set_arm(command.arm)
        self.reporter.leave_low_rate()  # from the command's end on, because the command may have taken long

    def _set_knobs(self, command: SetKnobs) -> None:
        """Answers once a first step has run with the change. A change that does not work is refused, and the run continues as before."""
        loop, error = self._loop, None
        before, arm, first = dict(loop.knobs), loop.arm, loop.account.index
        try:
            loop.set_knobs(command.changes, command.arm)
            loop.try_out()
            if not loop.exchanges:
                self._announce()
        except Exception as problem:  # whatever torch objects to is the answer
            error = explain(problem, loop.knobs)
        failed = {rank: text for rank, text in enumerate(self._world.gather(error)) if text is not None}
        error = next((text if len(failed) == self._world.size else f"rank {rank}: {text}" for rank, text in failed.items()), None)
        if error is None and loop.exchanges:
            loop.step()
            self._announce()
        elif error is not None:
            self._release_memory()
            loop.set_knobs({name: value for name, value in before.items() if loop.knobs.get(name) != value}, arm)
            if loop.exchanges:
                loop.recover()
            first = loop.account.index
        self._answer("knobsset", request=command.request, step=first, knobs=loop.knobs, error=error)
        loop.restart_peak_memory()
        loop.account.restart()

    def _release_memory(self) -> None:
        """After an error: free the tensors of the pass that broke off. The exception and its frames may refer to each other, so call this after the
        `except` block."""
        gc.collect()
        self._loop.release_cached_memory()

    def _probe(self, command: RunProbe) -> None:
        start, loop = now(), self._loop
        signals, error = None, None
        with loop.beside_the_peak():
            try:
                if not loop.probes:
                    raise ProbeError("this workload trains nothing: there is no pass to experiment with")
                signals = loop.probes[command.probe]()
            except Exception as problem:  # a probe must not end the run; what went wrong is the answer
                error = explain(problem, loop.knobs)
            if error is not None:
                self._release_memory()
        error = self._world.outcome(error)
        if error is not None and loop.exchanges:
            loop.recover()
        loop.account.finish()
        self.reporter.send()
        self._answer("probedone", request=command.request, probe=command.probe, signals=signals or {}, error=error, cost_s=now() - start)
        loop.settle()

    def _profile(self, command: Profile) -> None:
        if self._profiler is None and self._make_profiler is not None:
            self._profiler = self._make_profiler()
        if self._profiler is None:
            self._answer("profiled", request=command.request, error="there is no profiler here")
        else:
            self._profiler.take(command)

    def _wait_for_resume(self, command: Command) -> None:
        """`serve` has waited for the device; nothing else bounds how far the host is ahead of it."""
        self._loop.release_cached_memory()  # the other side of a trial may need it
        self._world.gather(None)  # each of the processes has come as far
        while True:
            if isinstance(command, Pause):
                self._answer("paused", request=command.request)
            while not self._channel.flush():  # no later message will take along what waits
                time.sleep(FULL_PIPE_S)
            command = self._inbox.wait()
            if isinstance(command, Stop):
                self._stopping = True
                break
            if isinstance(command, Resume):
                self._loop.set_arm(command.arm)
                break
            if isinstance(command, SetKnobs):
                self._answer("knobsset", request=command.request, step=0, knobs=self._loop.knobs, error=PAUSED)
            elif isinstance(command, RunProbe):
                self._answer("probedone", request=command.request, probe=command.probe, error=PAUSED)
            elif isinstance(command, Profile):
                self._answer("profiled", request=command.request, error=PAUSED)
        self._loop.settle()

    def _answer(self, tag: str, **fields: object) -> None:
        if self._world.leads:
            self._channel.send(message(tag, now(), **fields))

    def _announce(self) -> None:
        if self._announce_workload is not None and self._world.leads:
            self._announce_workload()


MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "DefaultCPUAllocator")
"""How torch and the system name a lack of memory."""


def explain(error: BaseException, knobs: Mapping[str, Value]) -> str:
    """`error` as one line for people."""
    if isinstance(error, PlainError):
        return str(error)
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    if isinstance(error, MemoryError) or any(word in str(error) for word in MEMORY_WORDS):
        return f"out of memory at batch_size {knobs.get('batch_size')}: {line}"
    return f"{type(error).__name__}: {line}"
