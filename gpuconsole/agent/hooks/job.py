"""The agent in one process of a user's job: it joins the run after the first step, sends segments,
and serves commands between steps."""

from __future__ import annotations

import gc
import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..clock import ThreadTimes, now
from ..counters import ProcessCounters, compile_counters
from ..descriptors import make_immortal
from ..loop import Probe, Signals
from ..probes import ProbeError
from ..protocol import (
    COUNTS,
    PREPARE,
    PROBE,
    SETTLING,
    UNDO,
    Command,
    Knobs,
    Pause,
    Profile,
    RunProbe,
    SetKnobs,
    message,
    reason,
)
from ..service import Inbox, Reporter, Service, explain
from . import changes as changes_of
from . import described, passes, tracing
from .changes import CHANGES, ChangeRefused
from .connection import Connection
from .evidence.arithmetic import Arithmetic
from .evidence.collectives import flight_recorder
from .evidence.communication import exchanges
from .evidence.loading import loading
from .evidence.loading_parts import window
from .evidence.memory_lines import history
from .evidence.observed import CopyCount, memory_parts, peaks, state, why_unpatched
from .evidence.probes import LOADING_PARTS, PROBES, WINDOWED, Probing, ProfilerWindow, why_refused
from .guard import entry, from_outside, switch, unseen, without_failures
from .memory import at_end, memory
from .memory import raised as memory_raised
from .modes import modes
from .optimizer import steppers
from .recorder import OWN
from .sampler import sampler
from .segment_breakdown import CountedSteps, SegmentBreakdown, StepSampler
from .watch import recorder, watch

SOCKET = "socket"
POLL_EVERY_S = 0.05
POLL_AT_LOW_RATE_S = 0.1
POLL_IN_TRIAL_S = 0.02
POLL_TO_SEND_S = 0.005
"""Seconds between two looks at the doorbell and the clock. Most steps of a fast loop end without
any work of the agent."""
SEND_EVERY_S = 0.5
SEND_AT_LOW_RATE_S = 1.0
"""The periods of messages, in seconds: of a job that is new or has just received a command (see
service.py), and of one that the console only watches. A message takes 0.8 ms between two steps of 6
ms: 10 µs a step with the first period, 5 µs with the second."""
COUNT_AT = 20
"""The step after which one step's operators are counted."""
MAX_TURNS = 8
"""The most optimizer steps to wait until all optimizers that step in turn have stepped. A counted
step with more of them would take long."""
EAGER = 8
"""Steps at the start after each of which the agent works."""
DESCRIBE_AT = 3
"""Steps after which the program is described for the first time."""
DESCRIBE_EVERY_S = 2.0
DESCRIBE_SHARE = 100.0
"""Seconds between two descriptions of the program, and how much longer than a description that time
is at least: a model may have 50 000 modules."""
STACKS_EVERY_S = 2.0
FAST_STACKS_EVERY_S = 0.2
"""Seconds between two messages about the samples of the stack, and where the console has asked for
more of them."""
LAST_MESSAGES_S = 1.0
CLOSED = "the connection", "the program has closed all its file descriptors, as daemons do"
"""Where and why the agent is off after that."""
INTERRUPTED = "an exception of the program has ended the probe"
ANYWHERE = frozenset(("optim", "precision", "cudnn_benchmark"))
"""Changes that can be taken back within a step: a flag or a setting."""
BESIDE_A_WINDOW = 4
"""Steps beside those of a profiler window that another process leaves out: the warm-up step, the
step at whose begin the profiler ends, and two to spare."""
SETTLE_AFTER_S = 0.05
"""A probe that holds the program for so long lets the queue of its loader fill up."""


class JobLoop:
    """The user's loop, as the service sees it."""

    kind = COUNTS
    optimizer = None
    exchanges = False

    def __init__(self) -> None:
        import torch

        self.breakdown = SegmentBreakdown(ThreadTimes())
        self.knobs: Knobs = {}
        self.varies = set[str]()
        self._precision_known = False
        """Knobs that the program changes by itself."""
        self._asked = set[str]()
        """Knobs that the console has changed."""
        self.scratch = Path()
        self.device = unseen(torch.device)(described.device() or "cpu")
        self.settles_until = 0
        """The step from which on steps count again; 0: they count."""
        self._counters = ProcessCounters()
        self._before: Knobs = {}
        self._own: Knobs = {}
        """The values that the program itself has set, of the knobs that the console has changed."""
        self._outside: Knobs = {}
        """During a trial: the values before it of the knobs that it changes."""
        self._probe_peak = self._probe_reserved = 0.0
        """The allocator's peak where a probe has made it, in bytes."""
        self._own_peak = 0.0
        """The peak of the program before that probe."""

    @property
    def arm(self) -> int:
        return recorder.arm

    @arm.setter
    def arm(self, arm: int) -> None:
        recorder.arm = arm

    @property
    def probes(self) -> Mapping[str, Probe]:
        """A job's probes may need several steps: see `evidence.probes`."""
        return {}

    def step(self) -> None:
        raise RuntimeError("the program makes its steps itself")

    def set_knobs(self, changes: Knobs, arm: int, prepare: bool = False) -> None:
        """Begin `changes`, see `pending`; or only prepare them, see `prepared`. The steps until it
        is over belong to no side of a trial. Raises ChangeRefused where one is not possible; those
        before it are taken back."""
        self._before = before = changes_of.observed()
        self._asked |= changes.keys()
        self._own = {**{name: before[name] for name in changes if name in before}, **self._own}
        done = list[str]()
        try:
            for name, value in changes.items():
                changes_of.begin_change(name, value, prepare)
                done.append(name)
        except Exception:
            for name in done:
                if name in before:
                    # the others go back in any case, and the reason is that of the refusal
                    with without_failures():
                        CHANGES[name].set(watch, before[name])
            raise
        self._outside = {**self.before(changes), **self._outside} if arm else {}
        self.arm = 0

    def take_back(self, changes: Knobs) -> None:
        """Undo changes of which one has failed."""
        for name in changes:
            with without_failures():  # the answer has the values that are in force
                if name in self._before and CHANGES[name].read(watch) != self._before[name]:
                    CHANGES[name].set(watch, self._before[name])

    def leave_trial(self) -> None:
        """The console has gone. If that is in the middle of a trial, the program goes on with the
        settings before the trial."""
        present = changes_of.observed()
        changes = {
            name: value
            for name, value in self._outside.items()
            if present.get(name) != value or _pends(name)
        }
        if changes:
            self.set_knobs(changes, 0)

    def take_trial_back(self) -> None:
        """The agent goes off in the middle of a trial, wherever the program is: the settings are
        those before the trial. Where a loader's workers serve, they do so until the end of the
        epoch, and weights keep their layout: these change between two steps only."""
        outside, self._outside = self._outside, {}
        for name in ANYWHERE & outside.keys():
            with without_failures():  # the others go back in any case
                CHANGES[name].set(watch, outside[name])

    def take_all_back(self) -> None:
        """The agent leaves a program that goes on: the settings are those that the program itself
        has made."""
        for name, value in self._own.items():
            with without_failures():  # the program has dropped what the change was about
                if CHANGES[name].read(watch) != value or _pends(name):
                    CHANGES[name].set(watch, value)

    def observe(self) -> None:
        """Read the knobs of the program again. One that has changed without the console varies; the
        first steps only show what it is."""
        knobs = described.observed_knobs()
        if recorder.index >= COUNT_AT:
            known = (knobs.keys() & self.knobs.keys()) - self._asked
            if watch.counted_precision and not self._precision_known:
                # the counted step has shown it; the program has not changed it
                self._precision_known, known = True, known - {"precision"}
            self.varies |= {name for name in known if knobs[name] != self.knobs[name]}
        self.knobs = knobs

    def before(self, changes: Knobs) -> Knobs:
        """The values of these knobs before the last change."""
        return {name: self._before[name] for name in changes if name in self._before}

    def prepared(self, changes: Knobs) -> bool:
        """Whether all `changes` can take effect in the next step. Raises ChangeRefused where one is
        not possible."""
        ready = [CHANGES[name].prepared(watch, value) for name, value in changes.items()]
        return all(ready)

    def pending(self, changes: Knobs) -> bool:
        """Whether a change that `set_knobs` began is still under way. Raises ChangeRefused where it
        failed."""
        # ask all: each counts its steps
        under_way = [CHANGES[name].pending(watch) for name in changes]
        return any(under_way)

    def try_out(self) -> None:
        """The next step of the program shows whether the change works."""

    def recover(self) -> None: ...

    def set_variant(self, arm: int) -> None:
        self.arm = arm

    def settle(self) -> None:
        """After a pause, the loader's queue is full: the steps that use it up do not count."""
        workers, prefetch = (
            int(self.knobs.get(name, 0)) for name in ("num_workers", "prefetch_factor")
        )
        self.settles_until = recorder.index + 2 + workers * prefetch
        recorder.kind = SETTLING

    def counters(self) -> dict[str, float]:
        counters = {"work.steps": float(recorder.index), **self._counters.read(), **loading.read()}
        counters |= switch.attempt("settings.modes", modes.read) or {}
        if self.breakdown.stream is not None:
            stream = self.breakdown.stream
            counters |= {
                "stream.steps": float(stream.steps),
                "stream.caught_up": float(stream.caught_up),
            }
            counters |= {
                "stream.ahead_s": stream.ahead_s,
                "stream.caught_up_s": stream.caught_up_s,
                "stream.ahead_steps": float(stream.ahead_steps),
            }
        if "torch._dynamo.utils" in sys.modules:
            counters.update(compile_counters())
        return counters

    def peak_memory_bytes(self) -> float:
        """CUDA: the peak of torch's allocator, without probes. CPU: the peak of the resident memory
        of this process.

        The statistics of the allocator belong to the program, so nobody restarts them after a
        probe. As long as their peak is the one that a probe has made, the peak before the probe
        counts, or what is allocated now.
        """
        if self.device.type == "cuda":
            peak, present, *_ = self._figures()
            return peak if peak != self._probe_peak else max(self._own_peak, present)
        return peak_resident_bytes()

    def peaks_are_own(self, allocated: float, reserved: float) -> bool:
        """Whether the program itself has made these peaks of the allocator, and no probe."""
        return allocated != self._probe_peak and reserved != self._probe_reserved

    def _figures(self) -> tuple[float, float, float, float]:
        """Of torch's allocator: the peak of the allocated bytes, the bytes that are allocated now,
        those that are reserved now, and their peak. torch.cuda.max_memory_allocated and
        memory_reserved sort all figures, which takes 160 µs."""
        import torch

        figures = (
            switch.attempt("memory.figures", torch.cuda.memory_stats_as_nested_dict, self.device)
            or {}
        )
        allocated, reserved = (
            figures.get(name, {}).get("all", {}) for name in ("allocated_bytes", "reserved_bytes")
        )
        return (
            float(allocated.get("peak", 0)),
            float(allocated.get("current", 0)),
            float(reserved.get("current", 0)),
            float(reserved.get("peak", 0)),
        )

    def forget_peak_memory(self) -> None: ...

    def restart_peak_memory(self) -> None: ...

    @contextmanager
    def beside_the_peak(self) -> Iterator[None]:
        """What this block reserves on the GPU is given back at its end, and does not count for the
        peak. Its tensors must be free by then."""
        if self.device.type != "cuda":
            yield
            return
        import torch

        own, (peak, _, reserved, reserved_peak) = self.peak_memory_bytes(), self._figures()
        try:
            yield
        finally:
            present_peak, _, present_reserved, present_reserved_peak = self._figures()
            if present_reserved > reserved:
                torch.cuda.empty_cache()
            if present_peak > peak:
                self._own_peak, self._probe_peak = own, present_peak
            if present_reserved_peak > reserved_peak:
                self._probe_reserved = present_reserved_peak

    def release_cached_memory(self) -> None:
        """The cache belongs to the program. `beside_the_peak` gives back what a probe has added to
        it."""

    def close(self) -> None:
        self._counters.close()
        self.breakdown.times.close()


def peak_resident_bytes() -> float:
    """The peak of the resident memory of this process; 0 where the system does not tell it. The
    program's folder may hold a `resource.py`, so Python's module of that name is not imported."""
    try:
        with open("/proc/self/status", "rb") as file:
            return next(
                (float(line.split()[1]) * 1024 for line in file if line.startswith(b"VmHWM:")), 0.0
            )
    except OSError:  # the program has no file descriptor left
        return 0.0


def _pends(name: str) -> bool:
    """Whether a change of this knob is under way, or has just failed."""
    try:
        return CHANGES[name].pending(watch)
    except ChangeRefused:
        return True


@contextmanager
def probing() -> Iterator[None]:
    """Count the time of this block as time of a probe, not as the agent's own work."""
    begun = now()
    try:
        yield
    finally:
        recorder.probes_s += now() - begun


class JobService(Service):
    """Serves the console between two steps of a user's loop. A change may need several steps; its
    answer comes then.

    In a job of several processes, the console first asks each to prepare the change, and then names
    one step for all.
    """

    loop: JobLoop
    _changing: SetKnobs | None = None
    _changed_at = 0
    """The step before which the last change was begun."""
    _preparing: SetKnobs | None = None
    _holds = False
    """Whether a change is prepared, and the console has not named its step yet."""
    _waiting: list[SetKnobs | Profile]

    def __init__(
        self, loop: JobLoop, inbox: Inbox, channel: Connection, announce: Any, folder: str
    ) -> None:
        super().__init__(loop, inbox, channel, announce=announce)
        self._folder = folder
        self.reporter = Reporter(loop, channel, every_s=SEND_EVERY_S, low_rate_s=SEND_AT_LOW_RATE_S)
        self.loop = loop
        self._waiting = []
        self._probing: tuple[RunProbe, Probing, float] | None = None
        self._window: ProfilerWindow | None = None
        switch.undo.append(self.give_up)

    def give_up(self) -> None:
        """The agent goes off: no sample is taken any longer, a probe under way ends, which may hold
        inputs of the program, and so does a trial."""
        window.end()
        self.end_probe()
        self.loop.take_trial_back()

    def end(self) -> None:
        """The process ends: send what is known. Nothing waits for the device."""
        if self._window is not None:
            self._window.stop()
        self.loop.breakdown.give_up()
        self.reporter.send()

    def end_probe(self) -> None:
        """End a probe that waits for a step. What it holds of the program is freed."""
        probing, self._probing = self._probing, None
        if probing is not None:
            probing[1].close()

    def forget_window(self) -> None:
        """In a forked child: the profiler of a window belongs to the parent."""
        if self._window is not None:
            self._window.forget()

    @property
    def waits(self) -> bool:
        """Whether a command waits for a step, or for the end of a change or a probe."""
        return (
            self._window is not None
            or self._changing is not None
            or self._preparing is not None
            or self._holds
            or self._probing is not None
            or bool(self._waiting)
            or bool(self.loop.settles_until)
        )

    def between_steps(self) -> bool:
        if self.loop.settles_until and recorder.index >= self.loop.settles_until:
            recorder.kind, self.loop.settles_until = COUNTS, 0
        while changes_of.loader.lost:
            self._channel.send(
                message("note", now(), text=changes_of.loader.lost.pop(), level="warning")
            )
            self.loop.observe()
            self._announce()
        if self._changing is not None:
            self._resume_changing(self._changing)
        if self._preparing is not None:
            self._resume_preparing(self._preparing)
        if self._probing is not None:
            self._resume_probing(*self._probing)
        if self._window is not None:
            self._resume_profiling(self._window)
        due = next(
            (command for command in self._waiting if command.at_step <= recorder.index), None
        )
        if due is not None and self._changing is None:
            self._waiting.remove(due)
            if isinstance(due, Profile):
                self._profile(due)
            else:
                self._set_knobs(due)
        return super().between_steps()

    def _set_knobs(self, command: SetKnobs) -> None:
        if command.at_step > recorder.index or self._changing is not None:
            self._waiting.append(command)
            return
        window.end()
        watch.allows_numerics, watch.allows_loader = command.numerics, command.loader
        self._holds, self._changed_at = False, recorder.index
        changes = self.loop.before(command.changes) if command.stage == UNDO else command.changes
        try:
            if command.at_step and (
                command.at_step < recorder.index or not self.loop.prepared(changes)
            ):
                self._answer_change(command, None, late=True)
                return
            self.loop.set_knobs(changes, command.arm, prepare=command.stage == PREPARE)
        except Exception as problem:  # the program goes on as before; the problem is the answer
            self._answer_change(command, reason(problem))
            if from_outside(problem):
                raise
            return
        if command.stage == PREPARE:
            self._preparing = command
            self._resume_preparing(command)
        else:
            self._changing = replace(command, changes=changes)
            self._resume_changing(self._changing)

    def _resume_preparing(self, command: SetKnobs) -> None:
        error = None
        try:
            if not self.loop.prepared(command.changes):
                return
        except Exception as problem:
            if from_outside(problem):
                raise
            error = reason(problem)
        self._preparing, self._holds = None, error is None
        self._answer_change(command, error, prepared=self._holds)

    def _resume_changing(self, command: SetKnobs) -> None:
        error = None
        try:
            if self.loop.pending(command.changes):
                return
            self.loop.arm = command.arm
        except Exception as problem:
            if from_outside(problem):
                raise
            error = reason(problem)
            self.loop.take_back(command.changes)
        self._changing = None
        self.loop.observe()
        self._announce()
        self._answer_change(command, error)

    def _answer_change(
        self, command: SetKnobs, error: str | None, prepared: bool = False, late: bool = False
    ) -> None:
        self._answer(
            "knobsset",
            request=command.request,
            step=recorder.index,
            knobs=self.loop.knobs,
            error=error,
            at_step=self._changed_at if command.at_step else recorder.index,
            prepared=prepared,
            late=late,
        )

    def _probe(self, command: RunProbe) -> None:
        """Begin a probe. It may need several steps; its answer comes then."""
        if command.probe == LOADING_PARTS:
            window.begin(int(self.loop.knobs.get("num_workers", 0)), command.request)
            return
        probe, refused = PROBES.get(command.probe), why_refused(command.probe)
        if self._probing is not None or self._window is not None:
            refused = "another probe or a profiler window is under way"
        if command.probe in WINDOWED and not refused:
            self._profile(command)
            return
        if probe is None or refused:
            self._answer("probedone", request=command.request, probe=command.probe, error=refused)
            return
        self._resume_probing(command, probe(self.loop), 0.0)

    def _resume_probing(self, command: RunProbe, probe: Probing, spent_s: float) -> None:
        """Let a probe work between two steps. `spent_s`: what it has taken so far."""
        start = now()
        with probing(), self.loop.beside_the_peak():
            try:
                signals, error = self._advance(probe)
            except BaseException:  # the program's own
                self._probing = None
                self._answer(
                    "probedone",
                    request=command.request,
                    probe=command.probe,
                    error=INTERRUPTED,
                    cost_s=spent_s + now() - start,
                )
                raise
            if error is not None:
                # the exception and its frames may refer to each other, and the frames to tensors
                gc.collect()
        spent_s += now() - start
        if signals is None and error is None:
            self._probing = command, probe, spent_s
            return
        self._probing = None
        if spent_s >= SETTLE_AFTER_S:
            self.loop.settle()
        self._answer(
            "probedone",
            request=command.request,
            probe=command.probe,
            signals=signals or {},
            error=error,
            cost_s=spent_s,
        )

    def answer_parts(self) -> None:
        """Send the parts of loading: as the answer of a probe, and later as what was seen without a
        request."""
        request, signals, error = window.request, Signals(), None
        try:
            signals = window.answer()
        except ProbeError as problem:
            error = str(problem)
        self._answer(
            "probedone",
            request=request,
            probe=LOADING_PARTS if request else "observed",
            signals=signals,
            error=error,
        )

    def _advance(self, probe: Probing) -> tuple[Signals | None, str | None]:
        """Run a probe until it waits for a step (None and None), returns its signals, or fails
        (why)."""
        try:
            next(probe)
        except StopIteration as end:
            return end.value, None
        except Exception as problem:  # a probe must not end the job; what went wrong is the answer
            if from_outside(problem):
                raise
            return None, explain(problem, self.loop.knobs)
        return None, None

    def _profile(self, command: Profile | RunProbe) -> None:
        """Begin a profiler window on the next steps of the program, for the user or for a probe.
        These steps do not count. In another process than that of the window, only the steps that
        wait for it do not count."""
        if isinstance(command, Profile) and command.at_step > recorder.index:
            self._waiting.append(command)
            return
        rank, processes = described.place()
        if isinstance(command, Profile) and processes > 1 and command.rank != rank:
            recorder.kind, self.loop.settles_until = (
                SETTLING,
                recorder.index + command.steps + BESIDE_A_WINDOW,
            )
            return
        try:
            if self._window is not None or self._changing is not None or self._probing is not None:
                raise ProbeError("a change, a probe or another window is under way")
            if isinstance(command, RunProbe) and processes > 1:
                raise ProbeError(
                    "several processes train together, and a profiler in one of them makes the"
                    " others wait"
                )
            with probing():
                self._window = ProfilerWindow(command, self._folder, self.loop.device)
        except Exception as problem:
            # the program goes on without a window; the problem is the answer
            if from_outside(problem):
                raise
            error = explain(problem, self.loop.knobs)
            if isinstance(command, RunProbe):
                self._answer("probedone", request=command.request, probe=command.probe, error=error)
            else:
                self._answer("profiled", request=command.request, error=error)
            return
        recorder.kind = PROBE

    def _resume_profiling(self, window: ProfilerWindow) -> None:
        with probing():
            over = window.step()
        if over:
            self._channel.send(window.answer())
            self._window = None
            self.loop.settle()

    def _wait_for_resume(self, command: Command) -> None:
        """A user's job is never paused."""
        if isinstance(command, Pause):
            self._channel.send(
                message("note", now(), text="the job is not paused: it belongs to the user")
            )


class Agent:
    """The agent of this process. `_join` is called after the first step, of an optimizer or of the
    program itself."""

    def __init__(self, folder: str, token: str = "", joined: bool = False) -> None:
        """`joined`: the program itself has started the agent, see `leave`."""
        self._folder, self._token, self._joined = folder, token, joined
        self._connection: Connection | None = None
        self._service: JobService | None = None
        self._inbox = Inbox()
        self._compiling_s = 0.0
        """What torch.compile has taken up to the last look."""
        self._describe_from = 0.0
        """When the program is described again."""
        self._stacks_from = 0.0
        """When the samples of the stack are sent again."""
        self._every_step = True
        self._works_at = 0.0
        """The agent works again after a step that ends then or later."""
        self._sampler, self._counted = StepSampler(), CountedSteps()
        self._arithmetic = Arithmetic()
        self._counted_from = self._waited = 0
        """The step in which the count of the operators has begun, and the optimizer steps since
        the last one that could end such a step."""
        self._copies: CopyCount | None = None
        self._announced: tuple[Any, ...] = ()
        self.rank, self._world_size = described.place()
        """Final with the first step: only then a program that starts its processes itself has set
        up torch.distributed."""
        memory.send, memory.send_lines = self._send_memory, self._send_lines

    def connect(self) -> None:
        """Connect to the console, and say which process this is. Raises OSError where the console
        has ended."""
        self._connection = Connection(os.path.join(self._folder, SOCKET))
        torch = sys.modules.get("torch")
        self._send(
            "jobprocess",
            pid=os.getpid(),
            parent=os.getppid(),
            script=described.script(),
            python=platform.python_version(),
            torch=str(getattr(torch, "__version__", "")),
            cuda=str(getattr(getattr(torch, "version", None), "cuda", None) or ""),
            rank=self.rank,
            world_size=self._world_size,
            token=self._token,
        )

    def _send(self, tag: str, **fields: object) -> None:
        assert self._connection is not None
        self._connection.send(message(tag, now(), **fields))

    def _was_closed(self) -> bool:
        """Whether the program has closed the descriptor of the connection."""
        return (
            self._connection is not None
            and not self._connection.is_ours()
            and self._connection.lost
        )

    def report_off(self, where: str, cause: str, detail: str) -> None:
        """Report that the agent is off, and close the connection."""
        if self._was_closed():
            where, cause = CLOSED
        if self._connection is None or self._connection.lost:
            self.connect()
        assert self._connection is not None
        self._send(
            "agentoff", pid=os.getpid(), rank=self.rank, where=where, cause=cause, detail=detail
        )
        self._connection.drain(LAST_MESSAGES_S)
        self._connection.close()

    @entry("job.step_ended")
    def step_ended(self) -> None:
        """Called after a step of the program that ends at `recorder.due` or later. Not while the
        step is captured into a CUDA graph."""
        if tracing.capturing() or (recorder.index < COUNT_AT and recorder.start < self._works_at):
            return
        recorder.enter(OWN)
        begun, probes_s = recorder.times[-1], recorder.probes_s
        try:
            self._work()
        finally:
            if recorder.on:
                recorder.leave()
            self._works_at = 0.0 if self._every_step else begun + self._poll_s()
            # the FLOPs of the step after COUNT_AT are always counted
            recorder.due = self._works_at if recorder.index >= COUNT_AT else 0.0
            recorder.own_s += now() - begun - (recorder.probes_s - probes_s)

    def _poll_s(self) -> float:
        """Seconds until the agent works again. The pipe holds 0.2 MB, and a message about many
        short steps is ten times as long."""
        if self._connection is not None and self._connection.waiting:
            return POLL_TO_SEND_S
        if recorder.arm:
            return POLL_IN_TRIAL_S
        low_rate = self._service is not None and self._service.loop.breakdown.low_rate
        return POLL_AT_LOW_RATE_S if low_rate else POLL_EVERY_S

    def _work(self) -> None:
        """What the agent does between two steps. Switches the agent off where the console has
        ended, or asks for the end."""
        if self._service is None:
            self._join()
        service, connection = self._service, self._connection
        assert service is not None and connection is not None
        exchanges.look()
        switch.attempt("collectives.look", flight_recorder.look, self._world_size)
        switch.attempt("stacks.sample", sampler.resume)
        switch.attempt("compiled.look", self._leave_out_compiling)
        # a short job may end before the next message
        to_count = not self._arithmetic.done and recorder.index >= COUNT_AT
        if self._every_step or to_count or connection.may_have_commands() or service.reporter.due():
            self._serve(service, connection)
        elif connection.waiting:
            connection.flush()
        recorder.sample_all, ends_only = (
            bool(recorder.arm),
            bool(recorder.arm) and recorder.on_stream and not steppers.several,
        )
        switches, recorder.ends_only = ends_only != recorder.ends_only, ends_only
        recorder.sample_at = self._sampler.next(
            recorder.index, recorder.start, service.loop.breakdown.low_rate
        )
        recorder.every = self._counted.every(
            self._sampler.usual_s, busy=self._every_step or bool(recorder.arm)
        )
        samples = recorder.sample_all or recorder.sample_at == recorder.index
        if samples or not recorder.every:
            recorder.mark_step()
        if samples or switches:
            recorder.sampled(samples)

    def _leave_out_compiling(self) -> None:
        """A step in which torch.compile has worked, for a new shape, belongs to no side of a trial.
        The look comes after each step that is as long as that."""
        if "torch._dynamo.utils" in sys.modules:
            before, self._compiling_s = self._compiling_s, compile_counters()["compile.total_s"]
            if recorder.arm and self._compiling_s > before:
                recorder.done = [
                    (*step[:8], SETTLING if step[8] == COUNTS else step[8], step[9])
                    for step in recorder.done
                ]

    def _serve(self, service: JobService, connection: Connection) -> None:
        """Find out what is not known yet, carry out commands, and send what is due."""
        if recorder.index >= DESCRIBE_AT and now() >= self._describe_from:
            begun = now()
            switch.attempt("settings.read", self._describe)
            self._describe_from = begun + max(DESCRIBE_EVERY_S, DESCRIBE_SHARE * (now() - begun))
        if recorder.index >= COUNT_AT and not self._arithmetic.done:
            switch.attempt("arithmetic.count", self._count_arithmetic)
            if "arithmetic" in switch.parts_off:
                self._arithmetic, recorder.kind = Arithmetic(), COUNTS
                self._arithmetic.done = True
            if self._arithmetic.done:
                switch.attempt("settings.read", self._describe)
                self._send_observed(self._arithmetic.signals or None)
                self._send_observed(switch.attempt("memory.parts", memory_parts))
                self._copies = switch.attempt("copies.begin", self._count_copies)
        elif self._copies is not None and self._copies.over():
            self._send_observed(switch.attempt("copies.count", self._copies.signals))
            self._copies = None
        device = service.loop.device
        if device.type == "cuda" and device.index is not None and memory.due(recorder.start):
            switch.attempt("memory.owners", self._send_owners, service.loop, device.index)
        if window.due():
            switch.attempt("parts.answer", service.answer_parts)
        self._send_notes()
        switch.attempt("stacks.send", self._send_stacks)
        connection.receive(self._inbox.put)
        goes_on = service.between_steps()
        self._every_step = (
            recorder.index < EAGER
            or self._arithmetic.under_way
            or self._waited > 0
            or self._copies is not None
            or service.waits
        )
        if not goes_on or connection.gone:
            switch.attempt(
                "changes.leave_trial",
                partial(self.leave, None) if self._joined else service.loop.leave_trial,
            )
        if not goes_on:
            switch.off("", None)
        elif connection.gone:
            switch.off("connection", None)

    def _send_stacks(self, everything: bool = False) -> None:
        """Send what the samples of the stack have shown, where it is time; `everything`: at
        once."""
        if everything or now() >= self._stacks_from:
            self._stacks_from = now() + (
                STACKS_EVERY_S if not sampler.fast else FAST_STACKS_EVERY_S
            )
            if samples := sampler.take():
                self._send("stacks", rank=self.rank, samples=samples)

    def _send_notes(self) -> None:
        while switch.notes and self._connection is not None:
            self._send("note", text=switch.notes.pop(0), level="warning")

    def _describe(self) -> None:
        assert self._service is not None
        self._service.loop.observe()
        self._announce()

    def _count_arithmetic(self) -> None:
        if steppers.several and not steppers.are_through and self._waited < MAX_TURNS:
            self._waited += 1
            return  # the rest of the step is that of other optimizers
        self._waited = 0
        samples = recorder.done[-1][4] if recorder.done else 0
        steps = max(1, recorder.index - self._counted_from)
        counted = self._arithmetic.step_ended(
            recorder.samples if steppers.several else samples, steps
        )
        self._counted_from = recorder.index
        recorder.kind = SETTLING if counted else COUNTS

    def _count_copies(self) -> CopyCount | None:
        if not recorder.on_stream:
            return None
        if reason := why_unpatched():
            switch.notes.append(f"copies to the GPU and waits for it are not counted: {reason}")
            return None
        return CopyCount(self._arithmetic.waits)

    @entry("job.ended")
    def ended(self) -> None:
        """The process ends: send what is left."""
        sampler.stop()
        if not switch.failed and self._connection is not None:
            raised = at_end()
            if self._service is None:
                if raised and memory.has_failed:
                    self._send(
                        "agentoff",
                        pid=os.getpid(),
                        rank=self.rank,
                        where="",
                        cause="",
                        detail="",
                        raised=raised,
                    )
                self._connection.drain(LAST_MESSAGES_S)
        if (
            self._service is not None
            and not switch.failed
            and self._connection is not None
            and not self._connection.gone
        ):
            steppers.close()
            self._service.end()
            device = self._service.loop.device
            memory.end(device.index if device.type == "cuda" else None)
            self._send_notes()
            self._send_stacks(everything=True)
            self._send(
                "agentoff",
                pid=os.getpid(),
                rank=self.rank,
                where="",
                cause="",
                detail="",
                raised=raised,
            )  # Python may take seconds to end after this
            self._connection.drain(LAST_MESSAGES_S)
        if self._service is not None and self._service.loop.breakdown.stream is not None:
            # to free events and page-locked memory calls CUDA, which ends the process by SIGABRT
            # where a kernel of the program has failed
            make_immortal(recorder.state(), self._service.loop.breakdown.stream)

    def leave(self, problem: BaseException | None) -> None:
        """The program goes on without the agent, from here on, between two steps or in the middle
        of one. `problem`: what the program has raised."""
        if problem is not None and self._connection is not None:
            memory_raised(problem)
        sampler.stop()
        window.end()
        if passes.state.counting is not None:
            passes.state.counting.stop()
        if self._service is None or switch.failed:
            return
        self._service.loop.take_all_back()
        if self._connection is None or self._connection.gone:
            return
        steppers.close()
        self._service.end()
        device = self._service.loop.device
        memory.end(device.index if device.type == "cuda" else None)
        self._send_notes()
        self._send_stacks(everything=True)

    def close(self) -> None:
        """Give back what the agent has of the process: file descriptors, and the function that
        Python calls at each garbage collection. The connection is closed by `report_off`."""
        if self._service is not None:
            self._service.loop.close()
        loading.close()

    def forget_program(self) -> None:
        """The agent is off: it keeps no tensor and no module of the program alive."""
        watch.keep_inputs, watch.last_inputs = False, None
        if self._service is not None:
            self._service.end_probe()

    def forked(self) -> None:
        """In a forked child: the connection and the account are those of the parent. What the
        modules hold of the program they forget themselves.

        Nothing is left to do after `leave`. What they hold is never freed here: to free a CUDA
        event, or page-locked memory that a stream has used, calls CUDA, and CUDA aborts a process
        that was forked after it began.
        """
        if self._joined and switch.failed:
            return
        self.close()
        make_immortal(recorder.state(), dict(vars(self)), watch.last_inputs)
        if self._service is not None:
            self._service.forget_window()
        passes.state.counting, watch.keep_inputs = None, False
        marks = recorder.marks
        if recorder.counted and marks is not None:
            marks(True)  # the child sees what the parent's step under way does not need
        recorder.reset()
        recorder.at_end, recorder.marks = self.step_ended, marks
        if self._connection is not None:
            self._connection.close()
        if self._copies is not None:
            self._copies.stop()
        self._connection = self._service = self._copies = None
        memory.reset()
        history.on = history.wanted = False
        self._inbox = Inbox()
        self._announced = ()
        self._describe_from = self._works_at = 0.0
        self._every_step = True
        self._arithmetic = Arithmetic()
        passes.state.inner = passes.state.sized = False

    def _join(self) -> None:
        if self._connection is None or self._was_closed():
            self.connect()
        assert self._connection is not None
        self.rank, self._world_size = described.place()
        host, leads = socket.gethostname(), self.rank == 0
        self._send(
            "rankjoined",
            rank=self.rank,
            host=host,
            pid=os.getpid(),
            leads=leads,
            world_size=self._world_size,
        )
        self._service = JobService(
            JobLoop(), self._inbox, self._connection, self._announce, self._folder
        )
        if self._service.loop.device.type == "cuda":
            history.begin()  # where torch.cuda did not begin it
        # the counters after the first step: what was compiled for it belongs to no other step
        self._service.reporter.send()

    def _announce(self) -> None:
        """Send what is known, if it has changed."""
        assert self._service is not None
        knobs, facts, about = self._service.loop.knobs, described.facts(), described.job_facts()
        facts |= self._arithmetic.facts | loading.facts()
        varies = {
            f"varies: {name}": "the program changes it by itself"
            for name in self._service.loop.varies
        }
        notes = described.notes(knobs) | varies
        if (knobs, facts, about, notes) == self._announced:
            return
        self._announced = (knobs, facts, about, notes)
        self._send("jobknown", rank=self.rank, facts=about)
        self._send("started", knobs=knobs, facts=facts, notes=notes)

    def _send_observed(self, signals: Signals | None) -> None:
        """Send what was seen once, as an answer that nobody asked for: the memory of the parts of
        the program, the copies of a step. None: it could not be seen."""
        if signals is not None:
            self._send("probedone", request=0, probe="observed", signals=signals)

    def _send_owners(self, job: JobLoop, device: int) -> None:
        """Send who owns how much of the GPU's memory now, the state of the allocator, and its peaks
        where the program has made them."""
        owners = memory.owners(device)
        if owners and (figures := memory.figures) is not None:
            own = job.peaks_are_own(figures.peak, figures.reserved_peak)
            known = peaks(figures, memory.states) if own and not memory.peak_failed else {}
            self._send(
                "memoryowners", rank=self.rank, owners=owners, signals=known | state(figures)
            )
        else:
            switch.notes.append(
                f"the owners of the GPU's memory are not read any longer: {memory.off}"
            )

    def _send_memory(self, failure: Mapping[str, Any]) -> None:
        """Send what is known about an allocation that failed. Nothing waits: the program may go
        on."""
        if self._connection is not None and not self._connection.gone and not switch.failed:
            self._send("outofmemory", pid=os.getpid(), rank=self.rank, failure=failure)

    def _send_lines(self, held: Mapping[str, Any]) -> None:
        """Send which lines of the program hold GPU memory."""
        if self._connection is not None and not self._connection.gone and not switch.failed:
            self._send("memorylines", rank=self.rank, held=held)
