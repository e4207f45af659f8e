"""Samples of the training thread's stack: which lines of the program take the time of each part of a step.

The other threads of the program are looked at too: one that computes in Python holds the interpreter's lock, and the training thread waits for it.

A bare thread reads the stack of the training thread about 20 times a second: 100 times a second in a fifth of a second, then it rests. While it waits for a
sample, the interpreter's switch interval is short: with the usual 5 ms a sample would come with the next function of torch, which releases the lock, and
never find the program's own lines before it. In the rest of the time the interval is the program's own.

`threading.enumerate` does not show the thread. It is gone before a fork and at the end of the process: Python 3.12 and newer warn where a process with
several threads forks.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import gc
import os
import random
import sys
import time
from types import FrameType
from typing import Any

from ..forks import before_forks, in_forked_children
from ..held import ProcFile
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
from .threads import BareThread
from .watch import is_program, module_name, place_name, recorder

EVERY_S = 0.01
"""Mean seconds between two samples. A sample takes about 0.2 ms of a core."""
SWITCH_S = 0.000101
"""The interpreter's switch interval while a sample is waited for. A thread that has let go of the lock waits so long before it asks for the lock again: the
stack must be read by then. Python keeps whole microseconds, and cuts: 100 µs that a program reads and sets again are 99 µs then, 101 µs stay 101 µs."""
SPELL_S, REST_S = 0.2, 0.8
"""Seconds with samples, and the mean seconds of rest after them. There is no rest where the console has asked for more samples, and at the start."""
MOST_OF_A_CORE, LONGEST_REST_S = 0.004, 10.0
"""Share of a core that samples may take at the low rate. Where many threads make a spell dearer, the rest after it is longer, up to so many seconds."""
FIRST_S = 3.0
"""Seconds without rest at the start: a job of some seconds has samples too."""
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
TYPED = ("<string>", "<stdin>")
"""The file names of a program that `python -c` or a pipe gives."""
WRAPPERS = frozenset(("wrapper", "wrapped", "inner", "decorate_context"))
"""Names of functions that decorators make: the function within says more."""
ANOMALY, STACK_OF_ANOMALY = "torch.anomaly_mode", ("format_stack", "/torch/fx/traceback.py")
"""Name of the library function in which anomaly mode keeps the stack of an operator, whichever function of torch has called the operator; the function of
torch that this is, and the end of its file's name."""
MOST_LINES = 8
MOST_FRAMES = 300
MOST_OF_STEP = 2000
"""Samples of one step that are kept apart."""
MOST_STACKS = 500
"""Different stacks between two messages. Further ones are counted without their outer lines."""
MOST_FILES, STAT_BYTES = 4096, 512
SPIN_NS, LATE_S = 50_000, 0.0002
"""How long a thread goes on running that does not need the interpreter's lock. One without a core does not need it either if this thread got the lock at
once."""
NAP_S, STOOD_NS = 0.0002, 20_000
"""How long the thread lets go of the interpreter's lock to see what a thread does that sleeps, and CPU time below which that thread slept on."""
OBJECTS = 60
"""More than a sample makes: a garbage collection, and with it finalizers of the program, must not run in this thread."""
MOST_SKIPPED = 5
BUSY = 0.2
"""The share of a core that another thread takes before its stack is read."""
MOST_THREADS = 32
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
"""The part of a step that a segment is, by its code. Those of the time between the segments are LOSS, CLIP, FEED and BETWEEN."""
THREAD = "thread"
"""In place of a part of a step, for a stack of another thread."""
LOSS, CLIP, FEED, BETWEEN, DATA_WAIT = "loss", "clip", "feed", "between", "data_wait"
"""From the end of the model's call to the backward pass; from the backward pass to the optimizer; from a batch to the model's call; from the optimizer
to the next batch or call."""
PYTHON, NATIVE, WAITS = "python", "native", "waits"
"""What the thread does: it runs Python, or operators too short to tell; it runs code without the interpreter's lock, such as an operator of torch; it
waits for a lock, for input or output, or sleeps."""

Line = tuple[str, int, str]
"""A line of the program: its file, its number, and the function."""
Stack = tuple[str, str, str, tuple[Line, ...]]
"""The part, what the thread does, the library function that the innermost line of the program calls (empty: none), and the lines of the program, the
innermost first."""


class Sampler:
    """Takes samples of the training thread while that trains. `cpu_s`: CPU seconds of the sampling thread so far."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._random = random.Random(0)
        self._skipped = 0
        self._usual_s = 0.0
        """The interpreter's switch interval as the program has it; 0: not known yet. A program that sets it itself is left alone."""
        self._leaves_interval = False
        self._thread = self._clock = 0
        self._state: ThreadState | None = None
        self._fast_until = 0.0
        self._of_step: list[tuple[Stack, float]] = []
        self._step = 0
        """The samples of the step under way, and the number of this step."""
        self._stacks: dict[Stack, float] = {}
        self._files: dict[str, str] = {}
        """The folder of the first file with each name."""
        self._is_program: dict[str, bool] = {}
        self._others = OtherThreads()
        self._forget()
        before_forks(self.stop)
        in_forked_children(self._forget)

    def _forget(self) -> None:
        """As in a process without the thread. A forked child has no other thread than the one that forked."""
        self._wanted = False
        self._sampling: BareThread | None = None
        self._wake: Any = None
        self._own_interval()
        self.close()
        self._stacks, self._of_step = {}, []

    def go_on(self) -> None:
        """Sample the present thread from now on. Called between two steps: after a fork, Python counts the threads until the fork is over."""
        if (thread := _thread.get_ident()) != self._thread:
            self.close()
            self._clock = time.pthread_getcpuclockid(thread)  # reading it raises OSError once the thread has ended
            self._state, self._thread = ThreadState(), thread
            self.faster(FIRST_S)
        if (self._sampling is not None and self._sampling.runs) or switch.failed:
            return
        self._usual_s = self._usual_s or sys.getswitchinterval()
        self._wanted = True
        self._wake = wake = _thread.allocate_lock()
        wake.acquire()
        try:
            self._sampling = BareThread(functools.partial(self._run, wake))
        except RuntimeError:  # the program may have no further thread
            self._wanted = False

    def stop(self) -> None:
        """End the thread, and wait until it is gone."""
        wake, self._wake, self._wanted = self._wake, None, False
        if wake is None:
            return
        wake.release()
        self._own_interval()
        if self._sampling is not None:
            self._sampling.join()

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
        """The stacks of the steps that have ended since the last call: fields of `model.stacks.StackSample`."""
        if recorder.index != self._step:
            self._end_step()
        taken, self._stacks = self._stacks, {}  # the sampling thread may be writing to the former one
        return [
            (part, kind, round(weight, 2), callee, [f"{self._place(file, number)} {function}" for file, number, function in lines])
            for (part, kind, callee, lines), weight in list(taken.items())
        ]

    def _place(self, file: str, number: int) -> str:
        """Name a line for people: `train.py:12`. Where two files have the same name, the folder of the second file stands before the name."""
        folder, name = os.path.split(file)
        if self._files.setdefault(name, folder) == folder:
            return place_name(file, number)
        return f"{os.path.basename(folder)}/{name}:{number}"

    # --- in the thread of its own -------------------------------------------------------------------------------

    def _run(self, wake: Any) -> None:
        try:
            self._sample_until_woken(wake)
        except BaseException:  # Python would print it in the job. Without samples the rest goes on
            self._wanted = False

    def _sample_until_woken(self, wake: Any) -> None:
        """Sample for a spell, rest, and so on. All pauses are random, so that they do not follow a rhythm of the program."""
        rest_s = REST_S
        while self._wanted:
            if not self.fast and wake.acquire(True, rest_s * (0.5 + self._random.random())):
                return
            begun_s = time.thread_time()
            try:
                self._others.look({self._thread, _thread.get_ident()})
                until = time.perf_counter() + SPELL_S
                while time.perf_counter() < until:
                    if self._sample_later(wake):
                        return
            finally:
                self.cpu_s = time.thread_time()
            rest_s = min(LONGEST_REST_S, max(REST_S, (self.cpu_s - begun_s) / MOST_OF_A_CORE - SPELL_S))

    def _sample_later(self, wake: Any) -> bool:
        """Wait, then take a sample. Returns whether the thread is to end."""
        # Exponential pauses: a sample that C code has delayed stands for all samples that C code has prevented, wherever its own pause began.
        pause_s = self._random.expovariate(1 / EVERY_S)
        due = time.perf_counter() + pause_s
        short_s = self._switch_soon()
        over = bool(wake.acquire(True, pause_s))
        self._switch_as_ever(short_s)  # the stack must not change while it is read
        self._skipped = 0 if self._skipped > MOST_SKIPPED or not _collects_soon() else self._skipped + 1
        if not over and not self._skipped and recorder.thread == self._thread and not recorder.arm and recorder.kind == COUNTS:
            self._sample(time.perf_counter() - due)
        return over

    def _switch_soon(self) -> float:
        """Make the interpreter's switch interval short. Returns the short interval; 0 where the program sets the interval itself: the interval is not changed
        then, because the program may bring back later what it has read."""
        present_s = self._own_interval()
        self._leaves_interval = self._leaves_interval or present_s != self._usual_s
        if self._leaves_interval or present_s <= SWITCH_S or not self._wanted:
            return 0.0
        sys.setswitchinterval(SWITCH_S)
        return SWITCH_S

    def _own_interval(self) -> float:
        """The program's own switch interval. Where the program has brought back the short interval, which it had read, the usual interval is set."""
        present_s = sys.getswitchinterval()
        if self._usual_s and present_s == SWITCH_S:
            sys.setswitchinterval(self._usual_s)
            return self._usual_s
        return present_s

    def _switch_as_ever(self, short_s: float) -> None:
        """Bring back the program's own switch interval. Where the program has set an interval meanwhile, the sampler never changes the interval again."""
        if short_s and self._own_interval() != self._usual_s:
            self._leaves_interval = True

    def _sample(self, late_s: float) -> None:
        """Count the present stack. C code that holds the interpreter's lock makes a sample late: it stands for those that could not be taken."""
        code, between = recorder.stack[-1], self._between()
        if code == WHOLE and recorder.last == FORWARD:  # in a framework's training step, after the model's call
            code = GAP
        busy = self._others.busy
        # No variable holds the dictionary: it has the frame of this function too, and both would keep each other and the program's objects alive.
        frame, *others = map(sys._current_frames().get, (self._thread, *busy))
        if frame is None or code == OWN:
            return
        while others:
            native_id = list(busy.values())[len(others) - 1]
            _, callee, lines = self._lines(others.pop(), THREAD)
            if lines or callee:
                self._count((THREAD, NATIVE if runs(native_id) else PYTHON, callee, lines), 1 + late_s / EVERY_S)
        part, callee, lines = self._lines(frame, between if code in (GAP, UNMARKED) else PARTS.get(code, DATA_WAIT))
        del frame  # before the lock goes: nothing of the program may be freed here
        self._count((part, self._kind(late_s), callee, lines), 1 + late_s / EVERY_S)

    def _count(self, stack: Stack, weight: float) -> None:
        """Keep a sample until its step is over. What the program does after its last step belongs to no step."""
        if recorder.index != self._step or len(self._of_step) >= MOST_OF_STEP:
            self._end_step()
        self._of_step.append((stack, weight))

    def _end_step(self) -> None:
        """Add the samples of the step that was under way. Another step is under way now, or the same one for very long."""
        of_step, self._of_step, self._step = self._of_step, [], recorder.index
        for stack, weight in of_step:
            self._add(stack, weight)

    def _add(self, stack: Stack, weight: float) -> None:
        if stack not in self._stacks and len(self._stacks) >= MOST_STACKS:
            stack = *stack[:3], stack[3][:1]
        self._stacks[stack] = self._stacks.get(stack, 0.0) + weight

    def _between(self) -> str:
        """The part of the step that the present moment is, where no segment is under way."""
        last = recorder.last
        if last >= LOADER:
            return FEED
        return {BACKWARD: CLIP, FORWARD: LOSS, WHOLE: LOSS, COMPILED: LOSS}.get(last, BETWEEN)

    def _lines(self, frame: FrameType | None, part: str) -> tuple[str, str, tuple[Line, ...]]:
        """The part, the library function that the innermost line of the program calls, and the lines of the program. In a light step the optimizer is no
        segment: its frames show it."""
        callee, lines = "", list[Line]()
        for _ in range(MOST_FRAMES):
            if frame is None or len(lines) == MOST_LINES:
                break
            code = frame.f_code
            file = code.co_filename
            if self._belongs(file) or (file in TYPED and module_name(frame) == "__main__"):
                line = file, frame.f_lineno or 0, qualified(code)
                if not lines or lines[-1] != line:  # the frame of a comprehension is that of its function
                    lines.append(line)
            elif not lines and callee != ANOMALY:
                callee = self._callee(frame, callee)
                if part in (CLIP, BETWEEN, LOSS) and "/torch/optim/" in file:
                    part = PARTS[OPTIMIZER]
            frame = frame.f_back
        return part, callee, tuple(lines)

    def _callee(self, frame: FrameType, callee: str) -> str:
        """Name a library's function. `callee`, the name of the function that it has called, stays where `callee` is of torch: the work of torch counts as torch's,
        whichever library calls torch."""
        code, module = frame.f_code, module_name(frame)
        if code.co_name == STACK_OF_ANOMALY[0] and code.co_filename.endswith(STACK_OF_ANOMALY[1]):
            return ANOMALY
        package = module.partition(".")[0]
        if code.co_name.startswith("_") or code.co_name in WRAPPERS or code.co_filename.startswith(("<", OWN_FILES)):
            return callee
        return callee if callee.startswith("torch.") and package != "torch" else f"{package}.{qualified(code)}"

    def _belongs(self, file: str) -> bool:
        """Whether a file is one of the program's own."""
        belongs = self._is_program.get(file)
        if belongs is None:
            if len(self._is_program) > MOST_FILES:
                self._is_program.clear()
            belongs = self._is_program[file] = is_program(file)
        return belongs

    def _kind(self, late_s: float) -> str:
        """What the sampled thread does, where this thread has come to the interpreter's lock `late_s` after its time. This thread holds the lock now: one that
        goes on running does so without it. One that sleeps may wait for the lock, and goes on as soon as it is let go."""
        state = self._state
        if state is None:
            return PYTHON
        try:
            begun_ns, since_ns = time.clock_gettime_ns(self._clock), time.perf_counter_ns()
            while state.runs():
                if time.perf_counter_ns() - since_ns > SPIN_NS:
                    has_core = time.clock_gettime_ns(self._clock) - begun_ns > SPIN_NS / 2
                    return NATIVE if has_core or late_s < LATE_S else PYTHON
            begun_ns = time.clock_gettime_ns(self._clock)
            time.sleep(NAP_S)
            return PYTHON if state.runs() or time.clock_gettime_ns(self._clock) - begun_ns > STOOD_NS else WAITS
        except OSError:  # the thread has ended, and with it its clock
            return PYTHON


class ThreadState:
    """Whether the thread that makes this object runs, or waits for a core only. Without letting go of the interpreter's lock."""

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
    """The threads that the program has made by `threading`, beside the training thread. `busy`: those that computed lately, with their native ids."""

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
        made = {number: vars(thread).get("_native_id") for number, thread in list(module._active.items()) if number not in but}
        numbers = list(made)
        if len(numbers) > MOST_THREADS:
            numbers = random.Random(int(t)).sample(numbers, MOST_THREADS)
        cpu_s = {number: cpu for number in numbers if made[number] and (cpu := cpu_of(made[number])) is not None}
        least_s = BUSY * (t - self._t)
        self.busy = {
            number: made[number] for number, cpu in cpu_s.items() if number in self._cpu_s and cpu - self._cpu_s[number] >= least_s
        }
        self._cpu_s, self._t = cpu_s, t


def cpu_of(native_id: int) -> float | None:
    """The CPU seconds of a thread of this process; None where it has ended."""
    try:
        return time.clock_gettime(_clock_of(native_id))
    except OSError:
        return None


def runs(native_id: int) -> bool:
    """Whether a thread of this process computes now. Called with the interpreter's lock: a thread that runs does so without it."""
    clock, until_ns = _clock_of(native_id), time.perf_counter_ns() + SPIN_NS
    try:
        begun_ns = time.clock_gettime_ns(clock)
        while time.perf_counter_ns() < until_ns:
            pass
        return time.clock_gettime_ns(clock) - begun_ns > SPIN_NS / 2
    except OSError:  # the thread has ended
        return False


def _clock_of(native_id: int) -> int:
    """The CPU clock of a thread, as Linux numbers it (CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED in include/linux/posix-timers.h). `time.pthread_getcpuclockid` would
    read the memory of a thread that may have ended."""
    return (~native_id << 3) | 6


def qualified(code: Any) -> str:
    """The name of a function with that of its class; before Python 3.11 without. A comprehension has the name of its function."""
    name = str(getattr(code, "co_qualname", code.co_name)).replace("<locals>.", "")
    for comprehension in COMPREHENSIONS:
        name = name.replace(f".{comprehension}", "")
    return name


def _collects_soon() -> bool:
    """Whether a garbage collection may begin within the next sample."""
    threshold = gc.get_threshold()[0]
    return bool(threshold and gc.isenabled()) and gc.get_count()[0] + OBJECTS >= threshold


sampler = Sampler()
switch.undo_part["stacks"] = sampler.stop
