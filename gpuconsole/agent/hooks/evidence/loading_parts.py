"""Which part of loading takes the time: a transform, a function or a line of the dataset. Stack
samples in the processes that load.

A worker of a DataLoader is a process of its own. A thread of each worker (see `threads`) looks a
few times a second for a file of the training process in the folder of the job. The file says until
when samples are wanted. The samples of a worker are another file, which the training process reads.
Without workers, the sampler of the training thread takes the samples. No code of the program runs
for a sample, and no sample of a worker is taken outside the window.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import random
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ...clock import now
from ...forks import before_forks, in_forked_children
from ...loop import Signals
from ...probes import ProbeError
from ...protocol import CodePlace, Signal
from ..borders.border import Border
from ..guard import switch
from ..sampler import sampler
from ..threads import ShortSwitches, Ticker
from ..watch import is_program, place_name

LENGTH_S = 3.0
MORE_S = 12.0
AGAIN_S = 4.0
"""Seconds until the first answer, of further samples after it, and between two answers. 150 samples
give a share within 8 points, 700 within 4."""
LOOK_EVERY_S = 0.25
EVERY_S = 0.02
"""Mean seconds between two samples of a worker. A sample takes 100 to 200 µs."""
WRITE_EVERY_S = 0.3
"""A worker writes so often within the window: it may end with its epoch."""
MIN_SAMPLES = 20
SHOWN, LOCKED = (
    ("loading.first_ratio", "loading.second_ratio", "loading.third_ratio"),
    "loading.lock_ratio",
)
"""Signals of the parts with most of the time, and of the time in which loading waits for a lock.
The source of each signal names the part: see `signals_of`."""
FETCH, QUEUES = (
    os.path.join("data", "_utils", "fetch.py"),
    os.path.join("multiprocessing", "queues.py"),
)
WORKER_LOOP = "_worker_loop"
ENTRIES = ("__getitem__", "__getitems__", "__iter__", "__next__")
"""Functions of a dataset that stand for all of its work. Of these each line is a part of its
own."""
CALLS = ("__call__", "forward", "_call_impl", "_wrapped_call_impl")
"""A method with such a name is named by its class."""
LOCK, SHARED_LOCKS = "waiting for a lock", os.path.join("multiprocessing", "synchronize.py")
TAKES_LOCK = re.compile(r"\.acquire\(|\b(flock|lockf)\(")
"""Matches a line of the program that takes a lock by a C function, which has no Python frame.
`with lock` needs no match: a lock of `multiprocessing` has a Python frame there, and workers do not
share a lock of `threading`."""


class LoadingPart(NamedTuple):
    """A part of loading. `name`: a transform, a function, or what a line calls; empty where a line
    calls nothing. `file`: empty where no line is known. `by_line`: each line is a part, as in the
    dataset's own `__getitem__`. `locked`: the thread waits for a lock."""

    name: str
    file: str
    line: int
    by_line: bool = False
    locked: bool = False

    @property
    def code(self) -> CodePlace:
        """Return the place in the program of this part of loading."""
        return CodePlace(place_name(self.file, self.line) if self.file else "", self.name)


SENDING = LoadingPart("sending of batches to the training process", "", 0)


class Seconds(defaultdict[LoadingPart, float]):
    """The time of loading in seconds, by part."""

    def __init__(self) -> None:
        super().__init__(float)


# --- one sample -----------------------------------------------------------------------------------


class Code:
    """Facts about a code object. They are kept, so that a sample is short. `holds`: whether its
    first argument has members (see `_members`)."""

    def __init__(self, code: CodeType) -> None:
        self.fetches = code.co_filename.endswith(FETCH)
        self.queues = code.co_filename.endswith(QUEUES)
        self.of_program = is_program(code.co_filename)
        by_name = code.co_name == "acquire" or (
            code.co_name == "__enter__" and code.co_filename.endswith(SHARED_LOCKS)
        )
        self.locks = by_name and not self.of_program
        self.first = code.co_varnames[0] if code.co_argcount else ""
        self.holds: bool | None = None if self.first else False


_codes: dict[CodeType, Code] = {}
MAX_CODES = 4096
"""Entries of `_codes`: a program may make code all the time, and an entry keeps its code alive."""


def part_of(frame: FrameType | None) -> LoadingPart | None:
    """The part of loading in which a thread is whose innermost frame is `frame`; None where it does
    not load."""
    stack: list[tuple[FrameType, Code]] = []
    while frame is not None:
        code = _codes.get(frame.f_code)
        if code is None:
            if len(_codes) >= MAX_CODES:
                _codes.clear()
            code = _codes[frame.f_code] = Code(frame.f_code)
        if code.fetches:
            break
        stack.append((frame, code))
        frame = frame.f_back
    if frame is None:
        return SENDING if _sends(stack) else None
    if not stack:
        return LoadingPart("the DataLoader itself", "", 0)
    if (taken := _takes_lock(stack)) is not None:
        return LoadingPart(LOCK, *_line(taken), by_line=True, locked=True)
    for inner, (around, code) in enumerate(stack):
        if code.holds is not False and (member := _member(around, code)):
            own = next((frame for frame, code in stack[:inner] if code.of_program), None)
            return (
                LoadingPart(member, *_line(own)) if own is not None else LoadingPart(member, "", 0)
            )
    outermost = stack[-1][0]
    place = next((place for place, (_, code) in enumerate(stack) if code.of_program), None)
    if place is None:
        return LoadingPart(_name(outermost.f_code), *_line(outermost))
    own = stack[place][0]
    if own.f_code.co_name not in ENTRIES:
        return LoadingPart(_name(own.f_code), *_line(own))
    return LoadingPart(
        _name(stack[place - 1][0].f_code) if place else "", *_line(own), by_line=True
    )


def _sends(stack: list[tuple[FrameType, Code]]) -> bool:
    """Whether a worker with this stack works between two batches, and does not wait for its next
    task."""
    in_queue = any(
        frame.f_code.co_name == "get" and frame.f_code.co_filename.endswith(QUEUES)
        for frame, _ in stack
    )
    return not in_queue and any(frame.f_code.co_name == WORKER_LOOP for frame, _ in stack)


def _takes_lock(stack: list[tuple[FrameType, Code]]) -> FrameType | None:
    """Return the frame of the program that waits for a lock in library code; None without such a
    wait. The lock of a queue does not count, because a queue waits for its next element by this
    lock."""
    within = list(itertools.takewhile(lambda entry: not entry[1].of_program, stack))
    if not any(code.locks for _, code in within) or any(code.queues for _, code in within):
        return None
    return stack[min(len(within), len(stack) - 1)][0]


def _line(frame: FrameType) -> tuple[str, int]:
    return frame.f_code.co_filename, frame.f_lineno


def _member(frame: FrameType, code: Code) -> str:
    """The transform that `frame` has under way, where its first argument holds transforms; empty
    otherwise.

    Compose of torchvision, albumentations, MONAI and torch_geometric keep their members as
    `transforms`; torch.nn.Sequential keeps modules.
    """
    values = frame.f_locals
    members = _members(values.get(code.first))
    if code.holds is None:
        code.holds = bool(members)
    under_way = (
        [value for value in values.values() if any(value is member for member in members)]
        if members
        else []
    )
    return _name_of(under_way[-1]) if under_way else ""


def _members(owner: Any) -> list[Any]:
    try:
        attributes = object.__getattribute__(owner, "__dict__")  # runs no code of the program
    except AttributeError:
        return []
    if not isinstance(attributes, dict):
        return []
    modules = attributes.get("_modules")
    members = attributes.get("transforms")
    if members is None and isinstance(modules, dict):
        members = modules.get("transforms")
        if members is None and any(base.__name__ == "Sequential" for base in type(owner).__mro__):
            return list(modules.values())
        members = list(getattr(members, "_modules", {}).values())
    return list(members) if isinstance(members, (list, tuple)) else []


def _name_of(member: Any) -> str:
    while isinstance(member, functools.partial):
        member = member.func
    return str(getattr(member, "__qualname__", None) or type(member).__qualname__).replace(
        "<locals>.", ""
    )


def _name(code: CodeType) -> str:
    """The name of a function with its class, where Python knows it (3.11); a class alone for its
    call."""
    name = str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]
    owner, _, last = name.rpartition(".")
    return owner if owner and last in CALLS else name


# --- samples of a thread --------------------------------------------------------------------------


class Samples:
    """Stack samples of one thread. `seconds`: the time that they stand for, by part of loading.
    `count`: the number of samples within a part."""

    def __init__(self) -> None:
        self.seconds = Seconds()
        self.count = 0

    def see(self, frame: FrameType | None, seconds: float) -> None:
        """Add a sample that stands for `seconds`. `frame`: the innermost frame of the thread."""
        part = part_of(frame)
        if part is not None:
            self.seconds[part] += seconds
            self.count += 1


class WorkerSampler:
    """Samples the stacks of a worker process, in a thread of this process. `folder`: the folder of
    the job. `thread`: the thread that loads. `parent`: the process ID of the training process."""

    def __init__(self, folder: str, thread: int, parent: int) -> None:
        self._asked = asked_file(folder, parent)
        self._folder, self._loads = folder, thread
        self._answer = f"{self._asked}-{os.getpid()}"
        # the program's own random numbers stay as they are
        self._random = random.Random(os.getpid())
        self._samples: Samples | None = None
        """Those of the window under way."""
        self._until = self._due = self._write_at = 0.0
        self._switches = ShortSwitches()

    def tick(self) -> float | None:
        """Take a sample, or look whether samples are wanted. Returns the seconds until the next
        call; None: the console has gone, or this part is off."""
        try:
            t = now()
            if self._samples is None:
                return self._look(t)
            self._switches.end()  # the stack must not change while it is read
            # A call that holds the interpreter's lock delays a sample until the call returns: the
            # sample stands for the delay too.
            self._samples.see(
                sys._current_frames().get(self._loads), EVERY_S + max(0.0, t - self._due)
            )
            if t >= self._write_at and not self._goes_on(self._samples, t):
                self._samples = None
                return LOOK_EVERY_S
            return self._pause_s()
        except Exception as problem:
            switch.part_off("parts.worker", problem)
            return None

    def _look(self, t: float) -> float | None:
        if not os.path.isdir(self._folder):  # gone with the console
            return None
        self._until = wanted_until(self._asked)
        if self._until <= t:
            return LOOK_EVERY_S
        self._samples, self._write_at = Samples(), t + WRITE_EVERY_S
        return self._pause_s()

    def end(self) -> None:
        """Give the interpreter its usual switch interval back. Call it once the thread has ended:
        the thread may have waited for a sample."""
        self._switches.end()

    def _pause_s(self) -> float:
        pause_s = self._random.expovariate(1 / EVERY_S)
        self._due = now() + pause_s
        self._switches.begin()
        return pause_s

    def _goes_on(self, samples: Samples, t: float) -> bool:
        """Write the samples so far, and return whether more are wanted."""
        self._write_at = t + WRITE_EVERY_S
        if not wanted_until(self._asked):
            with contextlib.suppress(OSError):
                os.unlink(self._answer)  # written after the training process has removed it
            return False
        self._write(samples)
        return t < self._until

    def _write(self, samples: Samples) -> None:
        with contextlib.suppress(OSError):  # the console has ended
            with open(self._answer + ".new", "w", encoding="utf-8") as file:
                json.dump(
                    [
                        samples.count,
                        [[*part, seconds] for part, seconds in samples.seconds.items()],
                    ],
                    file,
                )
            os.replace(self._answer + ".new", self._answer)


def asked_file(folder: str, training_pid: int) -> str:
    """The file by which a training process asks its workers for samples."""
    return os.path.join(folder, f"loading-{training_pid}")


def wanted_until(path: str) -> float:
    """The time on CLOCK_MONOTONIC until which samples are wanted; 0 if none are."""
    try:
        with open(path, encoding="ascii") as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.0


_folder: list[str] = []
_sampling: list[tuple[Ticker, WorkerSampler]] = []
"""The thread that samples this process, if this process is a worker; else empty."""


def begin_in_worker(folder: str) -> None:
    """`folder`: that of the job."""
    _folder[:] = [folder]


def begin_worker(frame: FrameType) -> bool:
    """What the process of a worker runs begins, in that process."""
    parent = multiprocessing.parent_process()
    if _folder and not switch.failed and parent is not None and parent.pid is not None:
        worker_sampler = WorkerSampler(_folder[0], threading.get_ident(), parent.pid)
        _sampling[:] = [(Ticker(worker_sampler.tick), worker_sampler)]
        before_forks(_end_sampling)
    return False


def _end_sampling() -> None:
    """End the thread of a worker that is about to fork. The thread does not start again."""
    while _sampling:
        ticker, worker_sampler = _sampling.pop()
        ticker.stop()
        worker_sampler.end()


BORDERS = (
    Border(
        "torch.utils.data._utils.worker", "_worker_loop", begin_worker, lambda failed: None, "parts"
    ),
)


# --- the window -----------------------------------------------------------------------------------


class OfWorkers:
    """Samples of the workers of this process, from now on for `seconds`."""

    whose = "of the loading processes"

    def __init__(self, seconds: float) -> None:
        self._asked = asked_file(_folder[0], os.getpid())
        self.stop()
        with open(self._asked + ".new", "w", encoding="ascii") as file:
            file.write(repr(now() + LOOK_EVERY_S + seconds))
        os.replace(self._asked + ".new", self._asked)

    def gathered(self) -> tuple[Seconds, int]:
        """The seconds by part, and the number of samples, as far as the workers have told them."""
        seconds, count = Seconds(), 0
        for path in self._answers():
            with open(path, encoding="utf-8") as file:
                of_worker, parts = json.load(file)
            count += of_worker
            for *part, of_part in parts:
                seconds[LoadingPart(*part)] += of_part
        return seconds, count

    def stop(self) -> None:
        """End the samples, and remove the files."""
        for path in (self._asked, *self._answers()):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _answers(self) -> list[str]:
        folder, name = os.path.split(self._asked)
        with contextlib.suppress(OSError):  # the console has ended
            return [
                os.path.join(folder, other)
                for other in os.listdir(folder)
                if re.fullmatch(rf"{name}-\d+", other)
            ]
        return []


class LocalSampler:
    """Samples of the training thread, which loads itself, from now on for `seconds`."""

    whose = "of the training thread while it loads"

    def __init__(self, seconds: float) -> None:
        self._samples = Samples()
        sampler.see = self._samples.see
        sampler.faster(seconds)

    def gathered(self) -> tuple[Mapping[LoadingPart, float], int]:
        return dict(self._samples.seconds), self._samples.count

    def stop(self) -> None:
        sampler.see = None
        sampler.faster(0.0)


class LoadingWindow:
    """The samples under way, if any: P16. The first answer comes after LENGTH_S; the window goes on
    beside the ordinary steps, and answers again.

    `request`: the command that waits for the first answer; 0: none does.
    """

    def __init__(self) -> None:
        self.request = 0
        self._samples: OfWorkers | LocalSampler | None = None
        self._due = self._until = 0.0

    def begin(self, workers: int, request: int) -> None:
        """`workers`: those of the loader."""
        self.end()
        self.request = request
        self._samples = OfWorkers(LENGTH_S + MORE_S) if workers else LocalSampler(LENGTH_S + MORE_S)
        self._due = now() + (LOOK_EVERY_S + WRITE_EVERY_S if workers else 0.0) + LENGTH_S
        self._until = self._due + MORE_S

    def due(self) -> bool:
        """Whether an answer is due: the first one, one with more samples, or the reason why there
        is none."""
        return now() >= self._due if self._samples is not None else self.request != 0

    def answer(self) -> Signals:
        """What the samples show so far. Raises ProbeError where there are too few samples, and
        where something has ended them."""
        samples, self.request = self._samples, 0
        if samples is None:
            raise ProbeError("a change, or a new process, has ended the samples")
        self._due += AGAIN_S
        seconds, count = samples.gathered()
        if self._due > self._until or count < MIN_SAMPLES:
            self.end()
        return signals_of(seconds, count, samples.whose)

    def end(self) -> None:
        """End the samples."""
        samples, self._samples = self._samples, None
        if samples is not None:
            samples.stop()

    def forget(self) -> None:
        """In a forked child: the samples are those of the parent."""
        self._samples, self.request = None, 0


window = LoadingWindow()
in_forked_children(window.forget)


def signals_of(seconds: Mapping[LoadingPart, float], count: int, whose: str) -> Signals:
    """Return the signals SHOWN and LOCKED of these samples. Raises ProbeError for too few
    samples."""
    if count < MIN_SAMPLES:
        raise ProbeError(f"only {count} stack samples {whose} were possible")
    source, total = f"{count} stack samples {whose}", sum(seconds.values())
    rows = joined(_with_locks(seconds))
    locked = [(part, of_part) for part, of_part in rows if part.locked]
    shown = {
        signal: Signal(of_part / total, "ratio", source, _placed(part).code)
        for signal, (part, of_part) in zip(SHOWN, rows, strict=False)
    }
    return shown | {
        LOCKED: Signal(
            sum(of_part for _, of_part in locked) / total,
            "ratio",
            source,
            locked[0][0].code if locked else None,
        )
    }


def _with_locks(seconds: Mapping[LoadingPart, float]) -> Seconds:
    """Return `seconds`, with each line that takes a lock by a C function as a part that waits for a
    lock."""
    lines, marked = functools.cache(_lines_of), Seconds()
    for part, of_part in seconds.items():
        takes = (
            part.file
            and not part.locked
            and TAKES_LOCK.search("".join(lines(part.file)[part.line - 1 : part.line]))
        )
        marked[
            LoadingPart(LOCK, part.file, part.line, by_line=True, locked=True) if takes else part
        ] += of_part
    return marked


def joined(seconds: Mapping[LoadingPart, float]) -> list[tuple[LoadingPart, float]]:
    """A row for each part, the largest first, with the line that has most of its time."""
    rows: dict[object, Seconds] = {}
    for part, of_line in seconds.items():
        rows.setdefault(part if part.by_line else part.name, Seconds())[part] += of_line
    return sorted(
        ((max(lines, key=lines.__getitem__), sum(lines.values())) for lines in rows.values()),
        key=lambda row: -row[1],
    )


def _placed(part: LoadingPart) -> LoadingPart:
    """A transform of a library is made at a line of the program: this line, where only one line of
    the program names it."""
    if part.file:
        return part
    call = re.compile(rf"\b{re.escape(part.name.rpartition('.')[2])}\(")
    lines = [
        (file, number)
        for file in _program_files()
        for number, text in enumerate(_lines_of(file), 1)
        if call.search(text) and not text.lstrip().startswith(("#", "class ", "def "))
    ]
    return LoadingPart(part.name, *lines[0]) if len(lines) == 1 else part


def _lines_of(file: str) -> list[str]:
    """The lines of a source file. `linecache` would keep them in the program."""
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return source.readlines()
    except OSError:
        return []


def _program_files() -> Iterable[str]:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if file and file.endswith(".py") and is_program(file)}
