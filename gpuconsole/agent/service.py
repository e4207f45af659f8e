"""What the agent does between two steps: it takes commands, answers them, and sends the steps."""

from __future__ import annotations

import gc
import queue
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .clock import now
from .loop import Loop
from .probes import ProbeError
from .protocol import (
    Channel,
    Command,
    Pause,
    PlainError,
    Profile,
    Resume,
    RunProbe,
    SetKnobs,
    Stop,
    Value,
    message,
    reason,
)
from .world import World

# --- commands wait until the training thread takes them -------------------------------------------

POLL_EVERY_S = 0.05
MAX_SKIPPED = 64


class Inbox:
    """Commands from the console, in order. One thread puts, the training thread takes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, command: Any) -> None:
        self._queue.put(command)

    def poll(self) -> Any | None:
        """The next command, or None."""
        return None if self._queue.empty() else self._queue.get()

    def wait(self) -> Any:
        """The next command. Blocks until there is one."""
        return self._queue.get()


class LockstepInbox(Inbox):
    """The leader's commands, given to every process of a world at the same poll.

    A poll takes a broadcast (0.1 to 0.3 ms on loopback). So most polls are skipped: at each
    broadcast the leader sends the number of polls to skip, such that a broadcast happens about
    every 50 ms. All processes poll once a step, hence they agree on the count.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._skip = 0
        self._polls = 1
        self._last = now()

    def poll(self) -> Any | None:
        if self._skip:
            self._skip -= 1
            return None
        command, self._skip = self._world.share((super().poll(), self._polls_to_skip()))
        return command

    def wait(self) -> Any:
        return self._world.share(super().wait() if self._world.leads else None)

    def _polls_to_skip(self) -> int:
        """The number of polls to skip, from the duration of the last polls."""
        t = now()
        each = max(1e-6, (t - self._last) / self._polls)
        skip = min(MAX_SKIPPED, int(POLL_EVERY_S / each))
        self._last, self._polls = t, skip + 1
        return skip


# --- when steps are sent --------------------------------------------------------------------------

SEND_EVERY_S = 0.25
"""The period of a run that is new or has just received a command: findings wait for the messages. A
message takes 0.3 to 0.5 ms of the training thread between two steps, which is 0.1 to 0.2 % of its
time."""

LOW_RATE_EVERY_S = 0.5
"""The period of a run without commands: the period at which the console paints its screen."""

LOW_RATE_AFTER_S = 20.0
"""Time from the first message, or from the first message after a command, to the low rate. A run's
first findings appear earlier."""

TRIAL_EVERY_S = 0.05
"""The period within a trial. A block takes 0.35 s and more, so a quarter of a second between its
end and the message would make it half as long again. At 0.3 to 0.5 ms a message this takes about
1 % of the time of both sides of the trial."""


class Reporter:
    """Sends the account's steps at a rate that depends on what happens."""

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        rank: int = 0,
        every_s: float | None = None,
        low_rate_s: float | None = None,
    ) -> None:
        """`every_s`: the period outside a trial. `low_rate_s`: the period at the low rate. None:
        SEND_EVERY_S, LOW_RATE_EVERY_S."""
        self._loop = loop
        self._channel = channel
        self._rank = rank
        self._every_s = SEND_EVERY_S if every_s is None else every_s
        self._low_rate_s = LOW_RATE_EVERY_S if low_rate_s is None else low_rate_s
        self._sending_s = 0.0
        self.sent_t = now()
        self.active_since: float | None = None
        """The time of the first message since the start or since the last command; None before that
        message."""

    def due(self) -> bool:
        """Whether it is time for a message."""
        return now() - self.sent_t >= self._period_s()

    def send(self) -> None:
        """Send the steps since the last message. The cost counts as overhead, and lies in the phase
        `other` of the next step."""
        start = now()
        account = self._loop.breakdown
        self._channel.send(
            message(
                account.tag,
                start,
                **account.fields(self._sending_s),
                memory_bytes=self._loop.peak_memory_bytes(),
                dropped=self._channel.dropped,
                rank=self._rank,
                counters=self._loop.counters(),
            )
        )
        self.sent_t = now()
        if self.active_since is None:
            self.active_since = self.sent_t
        account.low_rate = self.sent_t - self.active_since >= LOW_RATE_AFTER_S
        self._sending_s += self.sent_t - start

    def leave_low_rate(self) -> None:
        """Send at the full rate again: the console has just asked for something."""
        self.active_since, self._loop.breakdown.low_rate = None, False

    def _period_s(self) -> float:
        if self._loop.arm:
            return TRIAL_EVERY_S
        return self._low_rate_s if self._loop.breakdown.low_rate else self._every_s


# --- commands and answers -------------------------------------------------------------------------

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
    """Serves the console on behalf of one loop. In a world of several processes each has a Service;
    the leader's answers for all.

    `announce` sends what the workload says of itself under its present knobs; it is called in the
    leader only, at the start and after a change. `profiler` makes the profiler at its first use;
    without it profiler windows are refused. `max_steps` 0: no limit.

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
        self._loop.breakdown.restart()

    def between_steps(self) -> bool:
        """Send what is due and serve the commands that have come. Returns whether another step
        follows."""
        account = self._loop.breakdown
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
        self._loop.breakdown.finish()
        self.reporter.send()

    def serve(self, command: Command) -> None:
        """Carry out `command`. The steps before it are sent first."""
        self._loop.breakdown.finish()
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
            self._loop.set_variant(command.arm)
        # from the command's end on, because the command may have taken long
        self.reporter.leave_low_rate()

    def _set_knobs(self, command: SetKnobs) -> None:
        """Answers once a first step has run with the change. A change that does not work is
        refused, and the run continues as before."""
        loop, error = self._loop, None
        before, arm, first = dict(loop.knobs), loop.arm, loop.breakdown.index
        try:
            loop.set_knobs(command.changes, command.arm)
            loop.try_out()
            if not loop.exchanges:
                self._announce()
        except Exception as problem:  # whatever torch objects to is the answer
            error = explain(problem, loop.knobs)
        failed = {
            rank: text for rank, text in enumerate(self._world.gather(error)) if text is not None
        }
        error = next(
            (
                text if len(failed) == self._world.size else f"rank {rank}: {text}"
                for rank, text in failed.items()
            ),
            None,
        )
        if error is None and loop.exchanges:
            loop.step()
            self._announce()
        elif error is not None:
            self._release_memory()
            loop.set_knobs(
                {name: value for name, value in before.items() if loop.knobs.get(name) != value},
                arm,
            )
            if loop.exchanges:
                loop.recover()
            first = loop.breakdown.index
        self._answer("knobsset", request=command.request, step=first, knobs=loop.knobs, error=error)
        loop.restart_peak_memory()
        loop.breakdown.restart()

    def _release_memory(self) -> None:
        """After an error: free the tensors of the pass that broke off. The exception and its frames
        may refer to each other, so call this after the `except` block."""
        gc.collect()
        self._loop.release_cached_memory()

    def _probe(self, command: RunProbe) -> None:
        start, loop = now(), self._loop
        signals, error = None, None
        with loop.beside_the_peak():
            try:
                if not loop.probes:
                    raise ProbeError("this run trains nothing: there is no pass to probe")
                signals = loop.probes[command.probe]()
            except Exception as problem:
                # a probe must not end the run; what went wrong is the answer
                error = explain(problem, loop.knobs)
            if error is not None:
                self._release_memory()
        error = self._world.outcome(error)
        if error is not None and loop.exchanges:
            loop.recover()
        loop.breakdown.finish()
        self.reporter.send()
        self._answer(
            "probedone",
            request=command.request,
            probe=command.probe,
            signals=signals or {},
            error=error,
            cost_s=now() - start,
        )
        loop.settle()

    def _profile(self, command: Profile) -> None:
        if self._profiler is None and self._make_profiler is not None:
            self._profiler = self._make_profiler()
        if self._profiler is None:
            self._answer("profiled", request=command.request, error="there is no profiler here")
        else:
            self._profiler.take(command)

    def _wait_for_resume(self, command: Command) -> None:
        """`serve` has waited for the device; nothing else bounds how far the host is ahead of
        it."""
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
                self._loop.set_variant(command.arm)
                break
            if isinstance(command, SetKnobs):
                self._answer(
                    "knobsset",
                    request=command.request,
                    step=0,
                    knobs=self._loop.knobs,
                    error=PAUSED,
                )
            elif isinstance(command, RunProbe):
                self._answer(
                    "probedone", request=command.request, probe=command.probe, error=PAUSED
                )
            elif isinstance(command, Profile):
                self._answer("profiled", request=command.request, error=PAUSED)
        self._loop.settle()

    def _answer(self, tag: str, **fields: object) -> None:
        if self._world.leads:
            self._channel.send(message(tag, now(), **fields))

    def _announce(self) -> None:
        if self._announce_workload is not None and self._world.leads:
            self._announce_workload()


MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "DefaultCPUAllocator",
)
"""How torch and the system name a lack of memory."""


def explain(error: BaseException, knobs: Mapping[str, Value]) -> str:
    """Say in one line what went wrong. The line names a lack of memory, with the batch size."""
    if isinstance(error, PlainError):
        return str(error)
    if isinstance(error, MemoryError) or any(word in str(error) for word in MEMORY_WORDS):
        line = next(iter(str(error).strip().splitlines()), "")
        return f"out of memory at batch_size {knobs.get('batch_size')}{line and ': '}{line}"
    return reason(error)
