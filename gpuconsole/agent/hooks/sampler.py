"""Samples of the training thread's stack: which lines of the program take the time of each part of
a step, and which parts of loading the time of its batches.

The other threads of the program are looked at too: one that computes in Python holds the
interpreter's lock, and the training thread waits for it.

A thread reads the stack of the training thread about 20 times a second, and 100 times a second
where the console has asked for more samples, and at the start. While the thread waits for a sample,
the interpreter's switch interval is short (see `ShortSwitches`): else a sample would come with the
next function of torch that releases the interpreter's lock, and the lines of Python before that
function would never be seen.

No function of Python shows the thread (see `threads`). It is gone before a fork and at the end of
the process: Python 3.12 and newer warn where a process with several threads forks.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import gc
import os
import random
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from ..descriptors import ProcFile
from ..forks import before_forks, in_forked_children
from ..protocol import COUNTS
from .guard import OWN as OWN_FILES
from .guard import switch
from .recorder import (
    BACKWARD,
    COMM,
    COMPILED,
    EVAL,
    FORWARD,
    GAP,
    LOADER,
    LOG,
    OPTIMIZER,
    OWN,
    SAVE,
    UNMARKED,
    WHOLE,
    WITHOUT_GRADIENTS,
    ZERO,
)
from .threads import ShortSwitches, Ticker, calls_are_seen
from .watch import is_program, module_name, place_name, recorder

EVERY_S = 0.01
"""Mean seconds between two samples of a spell. A sample takes about 0.2 ms of a core. All pauses
are random, so that they do not follow a rhythm of the program; they are exponential: a sample that
C code has delayed stands for all samples that C code has prevented, wherever its own pause
began."""
BURST_S = 0.2
IDLE_S = 0.8
"""Seconds with samples, and the mean seconds of rest after them. There is no rest where the console
has asked for more samples, and at the start."""
MAX_CORE_SHARE = 0.004
MAX_IDLE_S = 10.0
"""Share of a core that samples may take. Where many threads make them dearer, the rest after a
spell is longer, up to so many seconds."""
OTHERS_EVERY_S = 1.0
FIRST_S = 3.0
"""Seconds with many samples at the start: a job of some seconds has samples too."""
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
TYPED = ("<string>", "<stdin>")
"""The file names of a program that `python -c` or a pipe gives."""
WRAPPERS = frozenset(("wrapper", "wrapped", "inner", "decorate_context"))
"""Names of functions that decorators make: the function within says more."""
ANOMALY, STACK_OF_ANOMALY = "torch.anomaly_mode", ("format_stack", "/torch/fx/traceback.py")
"""Name of the library function in which anomaly mode keeps the stack of an operator, whichever
function of torch has called the operator; the function of torch that this is, and the end of its
file's name."""
MAX_LINES = 8
MAX_FRAMES = 300
MAX_STEP_SAMPLES = 2000
"""Samples of one step that are kept apart."""
MAX_STACKS = 500
"""Different stacks between two messages. Further ones are counted without their outer lines."""
MAX_FILES = 4096
STAT_BYTES = 512
SPIN_NS = 50_000
LATE_S = 0.0002
"""How long a thread goes on running that does not need the interpreter's lock. One without a core
does not need it either if this thread got the lock at once."""
BACKOFF_S = 0.0002
STOOD_NS = 20_000
"""How long this thread waits to see what a thread does that sleeps, and CPU time below which that
thread slept on."""
OBJECTS = 60
"""More than a sample makes: a garbage collection, and with it finalizers of the program, must not
run in this thread."""
MAX_SKIPPED = 5
BUSY = 0.2
"""The share of a core that another thread takes before its stack is read."""
MAX_THREADS = 32
"""Other threads whose CPU time is read each second. Of more, so many are drawn."""

PARTS = {
    FORWARD: "forward",
    WHOLE: "forward",
    COMPILED: "forward",
    **dict.fromkeys(WITHOUT_GRADIENTS, "no_grad"),
    EVAL: "eval",
    BACKWARD: "backward",
    OPTIMIZER: "optimizer",
    ZERO: "optimizer",
    SAVE: "checkpoint",
    LOG: "logging",
    COMM: "comm",
}
"""The part of a step that a segment is, by its code. Those of the time between the segments are
LOSS, CLIP, FEED and BETWEEN."""
THREAD = "thread"
"""In place of a part of a step, for a stack of another thread."""
OPTIMIZERS, AUTOGRAD = "/torch/optim/", "/torch/autograd/__init__.py"
"""In the names of torch's files: its optimizers with what it wraps around each `step`, and the
backward pass."""
LOSS, CLIP, FEED, BETWEEN, DATA_WAIT = "loss", "clip", "feed", "between", "data_wait"
"""From the end of the model's call to the backward pass; from the backward pass to the optimizer;
from a batch to the model's call; from the optimizer to the next batch or call."""
UNNAMED = (CLIP, BETWEEN, LOSS)
"""Parts in which a counted step may be in the optimizer or in the backward pass."""
PYTHON, NATIVE, WAITS = "python", "native", "waits"
"""What the thread does: it runs Python, or operators too short to tell; it runs code without the
interpreter's lock, such as an operator of torch; it waits for a lock, for input or output, or
sleeps."""

Line = tuple[str, int, str]
"""A line of the program: its file, its number, and the function."""
Stack = tuple[str, str, str, tuple[Line, ...]]
"""The part, what the thread does, the library function that the innermost line of the program calls
(empty: none), and the lines of the program, the innermost first."""


class SleepSample(NamedTuple):
    """A sample of a thread that sleeps: it waits for the interpreter's lock, or for something else.
    `clock_ns`: its CPU time."""

    part: str
    callee: str
    lines: tuple[Line, ...]
    weight: float
    clock_ns: int


class StackSampler:
    """Takes samples of the training thread while that trains. `cpu_s`: CPU seconds of the sampling
    thread so far. `see`: gets the innermost frame and the seconds that a sample stands for, for the
    parts of loading; None: nobody asks for them."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.see: Callable[[FrameType, float], None] | None = None
        self._random = random.Random(0)
        self._skipped = 0
        self._broken = False
        """Whether a sample has failed: no further one is taken."""
        self._thread = self._clock = 0
        self._state: ThreadState | None = None
        self._fast_until = 0.0
        self._due = 0.0
        """When the next sample is due."""
        self._spell_until = self._burst_cpu_s = 0.0
        """The end of the spell under way, and `cpu_s` at its begin."""
        self._switches = ShortSwitches()
        self._others_due = 0.0
        self._sleeping: SleepSample | None = None
        self._of_step: list[tuple[Stack, float]] = []
        self._step = 0
        """The samples of the step under way, and the number of this step."""
        self._stacks: dict[Stack, float] = {}
        self._kinds: dict[tuple[str, str, tuple[Line, ...]], str] = {}
        """The last known answer, by part, callee and line: did the thread run Python?"""
        self._files: dict[str, str] = {}
        """The folder of the first file with each name."""
        self._is_program: dict[str, bool] = {}
        self._others = OtherThreads()
        self._forget()
        before_forks(self.stop)
        in_forked_children(self._forget)

    def _forget(self) -> None:
        """As in a process without the thread. A forked child has no other thread than the one that
        forked."""
        self._ticker: Ticker | None = None
        self._switches.end()
        self.see = None
        self.close()
        self._stacks, self._of_step, self._sleeping, self._kinds = {}, [], None, {}

    def resume(self) -> None:
        """Sample the present thread from now on. Called between two steps: after a fork, Python
        counts the threads until the fork is over."""
        if (thread := _thread.get_ident()) != self._thread:
            self.close()
            # reading it raises OSError once the thread has ended
            self._clock = time.pthread_getcpuclockid(thread)
            self._state, self._thread = ThreadState(), thread
            self.faster(FIRST_S)
        if calls_are_seen():
            self.stop()  # a debugger would take the thread for one of the program
        elif (
            (self._ticker is None or not self._ticker.runs)
            and not self._broken
            and not switch.failed
        ):
            self._sleeping, self._due = None, 0.0
            with contextlib.suppress(RuntimeError):  # the program may have no further thread
                self._ticker = Ticker(self._tick)

    def stop(self) -> None:
        """End the thread, and wait until it is gone."""
        ticker, self._ticker = self._ticker, None
        if ticker is not None:
            ticker.stop()
            self._switches.end()

    def close(self) -> None:
        """Give the file of the sampled thread back."""
        if self._state is not None:
            self._state.close()
        self._thread, self._clock, self._state = 0, 0, None

    def faster(self, seconds: float) -> None:
        """Take samples at the higher rate for so long."""
        self._fast_until = time.perf_counter() + seconds

    @property
    def fast(self) -> bool:
        """Whether samples are taken at the higher rate."""
        return time.perf_counter() < self._fast_until

    def take(self) -> list[tuple[str, str, float, str, list[str]]]:
        """The stacks of the steps that have ended since the last call: fields of
        `model.stacks.StackSample`."""
        if recorder.index != self._step:
            self._end_step()
        # the sampling thread may be writing to the former one
        taken, self._stacks = self._stacks, {}
        return [
            (
                part,
                kind,
                round(weight, 2),
                callee,
                [f"{self._place(file, number)} {function}" for file, number, function in lines],
            )
            for (part, kind, callee, lines), weight in list(taken.items())
        ]

    def _place(self, file: str, number: int) -> str:
        """Name a line for people: `train.py:12`. Where two files have the same name, the folder of
        the second file stands before the name."""
        folder, name = os.path.split(file)
        if self._files.setdefault(name, folder) == folder:
            return place_name(file, number)
        return f"{os.path.basename(folder)}/{name}:{number}"

    # --- in the thread of its own -----------------------------------------------------------------

    def _tick(self) -> float | None:
        """Take a sample, or see what became of a thread that slept. Returns the seconds until the
        next call."""
        try:
            if self._sleeping is not None:
                self._woke(self._sleeping)
            elif self._due:
                self._switches.end()  # the stack must not change while it is read
                self._look(time.perf_counter())
        except Exception:  # Python would print it in the job. Without samples the rest goes on
            self._broken = True
            return None
        if self._sleeping is not None:
            return BACKOFF_S
        self.cpu_s, t = time.thread_time(), time.perf_counter()
        if self._due and t >= self._spell_until and not self.fast:
            self._due = 0.0
            rest_s = max(IDLE_S, (self.cpu_s - self._burst_cpu_s) / MAX_CORE_SHARE - BURST_S)
            return min(MAX_IDLE_S, rest_s) * (0.5 + self._random.random())
        if not self._due or t >= self._spell_until:
            self._spell_until, self._burst_cpu_s = t + BURST_S, self.cpu_s
        pause_s = self._random.expovariate(1 / EVERY_S)
        self._due = t + pause_s
        self._switches.begin()
        return pause_s

    def _look(self, t: float) -> None:
        if t >= self._others_due:
            self._others_due = t + OTHERS_EVERY_S
            self._others.look({self._thread, _thread.get_ident()})
        self._skipped = (
            0 if self._skipped > MAX_SKIPPED or not _collects_soon() else self._skipped + 1
        )
        if (
            not self._skipped
            and recorder.thread == self._thread
            and not recorder.arm
            and recorder.kind == COUNTS
        ):
            self._sample(t - self._due)

    def _sample(self, late_s: float) -> None:
        """Count the present stack. C code that holds the interpreter's lock makes a sample late: it
        stands for those that could not be taken."""
        code, between = recorder.stack[-1], self._between()
        # in a framework's training step, after the model's call
        if code == WHOLE and recorder.last == FORWARD:
            code = GAP
        busy, weight = self._others.busy, 1 + late_s / EVERY_S
        # No variable holds the dictionary: it has the frame of this function too, and both would
        # keep each other and the program's objects alive.
        frame, *others = map(sys._current_frames().get, (self._thread, *busy))
        if frame is None or code == OWN:
            return
        while others:
            native_id = list(busy.values())[len(others) - 1]
            _, callee, lines = self._lines(others.pop(), THREAD)
            if lines or callee:
                self._count((THREAD, NATIVE if runs(native_id) else PYTHON, callee, lines), weight)
        if self.see is not None:
            self.see(frame, weight * EVERY_S)
        part, callee, lines = self._lines(
            frame, between if code in (GAP, UNMARKED) else PARTS.get(code, DATA_WAIT)
        )
        del frame  # before the lock goes: nothing of the program may be freed here
        kind, clock_ns = self._kind(late_s)
        if kind == WAITS:
            self._sleeping = SleepSample(part, callee, lines, weight, clock_ns)
            return
        if kind:
            self._remember(part, callee, lines[:1], kind)
        else:
            kind = self._kinds.get((part, callee, lines[:1]), PYTHON)
        self._count((part, kind, callee, lines), weight)

    def _remember(self, part: str, callee: str, line: tuple[Line, ...], kind: str) -> None:
        """Remember whether the thread runs Python at a line."""
        if len(self._kinds) >= MAX_STACKS:
            self._kinds.clear()
        self._kinds[part, callee, line] = kind

    def _woke(self, seen: SleepSample) -> None:
        """Count a sample of a thread that slept BACKOFF_S ago, and could have had the interpreter's
        lock since then."""
        self._sleeping = None
        try:
            went_on = time.clock_gettime_ns(self._clock) - seen.clock_ns > STOOD_NS or (
                self._state is not None and self._state.runs()
            )
        except OSError:  # the thread has ended, and with it its clock
            went_on = True
        if went_on:
            self._remember(seen.part, seen.callee, seen.lines[:1], PYTHON)
        self._count((seen.part, PYTHON if went_on else WAITS, seen.callee, seen.lines), seen.weight)

    def _count(self, stack: Stack, weight: float) -> None:
        """Keep a sample until its step is over. What the program does after its last step belongs
        to no step."""
        if recorder.index != self._step or len(self._of_step) >= MAX_STEP_SAMPLES:
            self._end_step()
        self._of_step.append((stack, weight))

    def _end_step(self) -> None:
        """Add the samples of the step that was under way. Another step is under way now, or the
        same one for very long."""
        of_step, self._of_step, self._step = self._of_step, [], recorder.index
        for stack, weight in of_step:
            self._add(stack, weight)

    def _add(self, stack: Stack, weight: float) -> None:
        if stack not in self._stacks and len(self._stacks) >= MAX_STACKS:
            stack = *stack[:3], stack[3][:1]
        self._stacks[stack] = self._stacks.get(stack, 0.0) + weight

    def _between(self) -> str:
        """The part of the step that the present moment is, where no segment is under way."""
        last = recorder.last
        if last >= LOADER:
            return FEED
        return {BACKWARD: CLIP, FORWARD: LOSS, WHOLE: LOSS, COMPILED: LOSS}.get(last, BETWEEN)

    def _lines(self, frame: FrameType | None, part: str) -> tuple[str, str, tuple[Line, ...]]:
        """The part, the library function that the innermost line of the program calls, and the
        lines of the program. In a counted step the backward pass and the optimizer are no segments:
        their frames show them."""
        callee, lines = "", list[Line]()
        for _ in range(MAX_FRAMES):
            if frame is None or len(lines) == MAX_LINES:
                break
            code = frame.f_code
            file = code.co_filename
            if self._belongs(file) or (file in TYPED and module_name(frame) == "__main__"):
                line = file, frame.f_lineno or 0, qualified(code)
                # the frame of a comprehension is that of its function
                if not lines or lines[-1] != line:
                    lines.append(line)
            elif not lines and callee != ANOMALY:
                callee = self._callee(frame, callee)
                if part in UNNAMED:
                    part = part_of_torch(file, code.co_name) or part
            elif lines and part in UNNAMED and is_own_step(file, lines[-1]):
                part = PARTS[OPTIMIZER]
            frame = frame.f_back
        return part, callee, tuple(lines)

    def _callee(self, frame: FrameType, callee: str) -> str:
        """Name a library's function. `callee`, the name of the function that it has called, stays
        where `callee` is of torch: the work of torch counts as torch's, whichever library calls
        torch."""
        code, module = frame.f_code, module_name(frame)
        if code.co_name == STACK_OF_ANOMALY[0] and code.co_filename.endswith(STACK_OF_ANOMALY[1]):
            return ANOMALY
        package = module.partition(".")[0]
        if (
            code.co_name.startswith("_")
            or code.co_name in WRAPPERS
            or code.co_filename.startswith(("<", OWN_FILES))
        ):
            return callee
        return (
            callee
            if callee.startswith("torch.") and package != "torch"
            else f"{package}.{qualified(code)}"
        )

    def _belongs(self, file: str) -> bool:
        """Whether a file is one of the program's own."""
        belongs = self._is_program.get(file)
        if belongs is None:
            if len(self._is_program) > MAX_FILES:
                self._is_program.clear()
            belongs = self._is_program[file] = is_program(file)
        return belongs

    def _kind(self, late_s: float) -> tuple[str, int]:
        """Return what the sampled thread does, and its CPU time. The sampler got the interpreter's
        lock `late_s` after its due time and holds the lock now. So a sampled thread that runs does
        so without the lock. A sampled thread that sleeps may wait for the lock: `_woke` decides.
        Empty if the answer is not known: on a busy machine, the sampled thread has no core, and the
        sampler is late for one of two reasons. Either the sampler had no core, or the sampled
        thread had the lock."""
        state = self._state
        if state is None:
            return PYTHON, 0
        try:
            begun_ns, since_ns = time.clock_gettime_ns(self._clock), time.perf_counter_ns()
            while state.runs():
                if time.perf_counter_ns() - since_ns > SPIN_NS:
                    has_core = time.clock_gettime_ns(self._clock) - begun_ns > SPIN_NS / 2
                    return NATIVE if has_core or late_s < LATE_S else "", 0
            return WAITS, time.clock_gettime_ns(self._clock)
        except OSError:  # the thread has ended, and with it its clock
            return PYTHON, 0


class ThreadState:
    """Whether the thread that makes this object runs, or waits for a core only. Without letting go
    of the interpreter's lock."""

    def __init__(self) -> None:
        self._file = ProcFile("/proc/thread-self/stat")
        self._buffer = ctypes.create_string_buffer(STAT_BYTES)
        self._pread = ctypes.PyDLL(None).pread
        self._pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)

    def runs(self) -> bool:
        """False also where the thread has ended."""
        read = 0 if self._file.gone else self._pread(self._file.fd, self._buffer, STAT_BYTES, 0)
        return self._buffer.raw[: max(0, read)].rpartition(b") ")[2][:1] == b"R"

    def close(self) -> None:
        self._file.close()


class OtherThreads:
    """The threads that the program has made by `threading`, beside the training thread. `busy`:
    those that computed lately, with their native ids."""

    def __init__(self) -> None:
        self.busy: dict[int, int] = {}
        self._cpu_s: dict[int, float] = {}
        self._t = 0.0

    def look(self, but: set[int]) -> None:
        """Find out which threads have taken BUSY of a core since the last look."""
        module, t = sys.modules.get("threading"), time.perf_counter()
        if module is None:
            return
        # Without a lock, and without an attribute that a class of the program may define.
        made = {
            number: vars(thread).get("_native_id")
            for number, thread in list(module._active.items())
            if number not in but
        }
        numbers = list(made)
        if len(numbers) > MAX_THREADS:
            numbers = random.Random(int(t)).sample(numbers, MAX_THREADS)
        cpu_s = {
            number: cpu
            for number in numbers
            if made[number] and (cpu := cpu_of(made[number])) is not None
        }
        least_s = BUSY * (t - self._t)
        self.busy = {
            number: made[number]
            for number, cpu in cpu_s.items()
            if number in self._cpu_s and cpu - self._cpu_s[number] >= least_s
        }
        self._cpu_s, self._t = cpu_s, t


def cpu_of(native_id: int) -> float | None:
    """The CPU seconds of a thread of this process; None where it has ended."""
    try:
        return time.clock_gettime(_clock_of(native_id))
    except OSError:
        return None


def runs(native_id: int) -> bool:
    """Whether a thread of this process computes now. Called with the interpreter's lock: a thread
    that runs does so without it."""
    clock, until_ns = _clock_of(native_id), time.perf_counter_ns() + SPIN_NS
    try:
        begun_ns = time.clock_gettime_ns(clock)
        while time.perf_counter_ns() < until_ns:
            pass
        return time.clock_gettime_ns(clock) - begun_ns > SPIN_NS / 2
    except OSError:  # the thread has ended
        return False


def _clock_of(native_id: int) -> int:
    """The CPU clock of a thread, as Linux numbers it (CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED in
    include/linux/posix-timers.h). `time.pthread_getcpuclockid` would read the memory of a thread
    that may have ended."""
    return (~native_id << 3) | 6


def part_of_torch(file: str, function: str) -> str:
    """Return the part of a step in which torch runs a function of `file`; empty for most."""
    if OPTIMIZERS in file:
        return PARTS[OPTIMIZER]
    return PARTS[BACKWARD] if function == "backward" and file.endswith(AUTOGRAD) else ""


def is_own_step(file: str, called: Line) -> bool:
    """Return whether torch has called the step of an optimizer of the program from `file`. Torch
    also calls closures of the program in an optimizer: these compute losses."""
    return OPTIMIZERS in file and called[2].endswith(".step")


def qualified(code: Any) -> str:
    """The name of a function with that of its class; before Python 3.11 without. A comprehension
    has the name of its function."""
    name = str(getattr(code, "co_qualname", code.co_name)).replace("<locals>.", "")
    for comprehension in COMPREHENSIONS:
        name = name.replace(f".{comprehension}", "")
    return name


def _collects_soon() -> bool:
    """Whether a garbage collection may begin within the next sample."""
    threshold = gc.get_threshold()[0]
    return bool(threshold and gc.isenabled()) and gc.get_count()[0] + OBJECTS >= threshold


sampler = StackSampler()
switch.undo_part["stacks"] = sampler.stop
