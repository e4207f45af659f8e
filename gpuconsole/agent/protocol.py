"""Plain data that the agent exchanges with the console: steps, messages, commands, and the words
for what failed.

The console imports these types from here, and nothing else of the agent. This module needs the
standard library only, because the agent also runs where gpuconsole is not installed. The events of
the console are in `gpuconsole.wire.events`: `tests/agent/test_protocol.py` checks that the agent's
messages have their fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

PHASES = (
    "data_wait",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "comm",
    "logging",
    "checkpoint",
    "eval",
    "other",
    "loss",
    "generation",
)
"""The exclusive parts of a step; their times sum to the wall time of the step. A mark names a phase
by its index here, and a recording stores the parts in this order, so a new part must come last."""

COLLECTIVE_KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
    "other",
)

COUNTS, SETTLING, PROBE = 0, 1, 2
"""Kinds of a step: it counts; it follows a change or a pause; it belongs to a probe."""

Value: TypeAlias = bool | int | float | str
Knobs: TypeAlias = dict[str, Value]
Message: TypeAlias = dict[str, Any]
"""An event on the wire. The key `event` holds its tag, the key `t` its time in seconds on
CLOCK_MONOTONIC."""


@dataclass(frozen=True)
class CodePlace:
    """A place in the code of the program. `line`: `train.py:12`; empty for a function without a
    known line. `part`: the part of a step, a key of `model.stacks.PARTS`; empty if the part does
    not matter. `caller`: the line from which nearly all calls come, as `train.py:30 main`."""

    line: str
    function: str = ""
    part: str = ""
    caller: str = ""

    @classmethod
    def of(cls, written: str, part: str = "", caller: str = "") -> CodePlace:
        """Parse a place such as `train.py:12 main`. The name of a file may contain spaces; the name
        of a function contains none."""
        line, _, function = written.rpartition(" ")
        return cls(line, function, part, caller)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.line, self.function)))


@dataclass(frozen=True)
class Signal:
    """One number that a probe measured. `source` names the clock or counter, and the number of
    readings where it matters. `place`: the code that the number is about, or that has most of it;
    null if there is none, absent in files of earlier versions. No reader parses a place out of
    `source`."""

    value: float
    unit: str
    source: str
    place: CodePlace | None = None


class MarkedStep(NamedTuple):
    """One step: its start, and for each mark the phase that ended there and the time. All times in
    seconds on CLOCK_MONOTONIC.

    `runq`: cumulative run-queue seconds of the training thread, at the start and at each mark;
    empty where they were not read.
    """

    index: int  # type: ignore[assignment]  # hides the method tuple.index
    start: float
    ended: list[int]
    times: list[float]
    runq: list[float]
    samples: int
    tokens: int
    loss: float | str | None
    arm: int
    kind: int


class Exchange(NamedTuple):
    """One exchange of gradients that DistributedDataParallel has timed itself: see
    hooks/evidence/communication.py. All times in seconds.

    `model`: the number of the DDP module in this process. `iteration`: DDP's own count of exchanges
    from 1, the same in all processes. `step`: the step before which it was read. `forward_s`: from
    the start of the forward pass to the first gradient; 0 where this pass also waits for the
    buffers of process 0. `compute_s`: from there to the last gradient. `comm_s`: from the start of
    the first bucket's exchange to the end of the last one's. `exposed_s`: from the last gradient to
    that end.
    """

    model: int
    iteration: int
    step: int
    forward_s: float
    compute_s: float
    comm_s: float
    exposed_s: float


class CollectiveKind(NamedTuple):
    """Sums over the collectives of one kind. `bytes`: of their data. `timed`: the collectives whose
    duration is known. `seconds`: the sum of these durations."""

    kind: str
    calls: int
    bytes: int
    seconds: float
    timed: int


class Arrival(NamedTuple):
    """One call of a collective. `size`: processes of the group; 0: not known. `sequence`: the
    group's own count, the same in all its processes. `kind`: its place in COLLECTIVE_KINDS.
    `at_us`: microseconds on the host's clock (CLOCK_REALTIME). `lasts_s`: on the GPU; 0: not
    known."""

    group: str
    size: int
    sequence: int
    kind: int
    at_us: int
    lasts_s: float
    bus_bytes: float


class Collectives(NamedTuple):
    """What a read of torch's record of collectives has given. `kinds`: the calls of `steps` steps.
    `reason`: why there are none."""

    steps: int
    kinds: list[CollectiveKind]
    arrivals: list[Arrival]
    reason: str


# --- messages to the console ----------------------------------------------------------------------


def message(tag: str, t: float, /, **fields: Any) -> Message:
    """The event with this tag, at `t`. `fields` are those of its class in `gpuconsole.wire.events`;
    a field with a default may be absent."""
    return {"event": tag, "t": t, **fields}


def encode(message: Message) -> bytes:
    """`message` as one JSON line, without the newline; a Signal becomes an object with its fields.
    A faster encoder may take its place: see `Channel`."""
    return json.dumps(message, separators=(",", ":"), default=asdict).encode()


class Channel(Protocol):
    """The connection to the console. It must not block: what a full pipe has no room for is dropped
    and counted, or waits."""

    dropped: int

    def send(self, message: Message, /) -> None: ...

    def flush(self) -> bool:
        """Send what waits, as far as the pipe has room. Returns whether nothing waits any
        longer."""
        ...


# --- commands from the console --------------------------------------------------------------------

PREPARE, UNDO = "prepare", "undo"
"""Stages of a change that several processes make before one step."""


@dataclass(frozen=True)
class SetKnobs:
    """Change live knobs between two steps. Later steps carry `arm`. Answered by KnobsSet.

    `at_step`: a user's job makes the change before this step, or answers that it is too late; 0:
    the next step.
    `numerics`: the user has agreed to changes that alter the numbers of the user's own job.
    `loader`: to workers that load ahead, from copies of the dataset. `stage`: in a job of several
    processes, PREPARE: get ready, and change nothing yet; UNDO: bring back the values from before.
    """

    request: int
    changes: Knobs
    arm: int = 0
    at_step: int = 0
    numerics: bool = False
    loader: bool = False
    stage: str = ""


@dataclass(frozen=True)
class RunProbe:
    """Answered by ProbeDone."""

    request: int
    probe: str


@dataclass(frozen=True)
class Profile:
    """Run `steps` steps under the profiler. The trace goes, gzipped, to the path `keep`. In a
    user's job of several processes, only the process `rank` is profiled, from the step `at_step`
    on. The other processes wait for that process. The steps in which they wait do not count."""

    request: int
    steps: int
    keep: str
    rank: int = 0
    at_step: int = 0


@dataclass(frozen=True)
class Pause:
    """Stop between two steps until Resume, so that another worker has the device to itself.
    Answered by Paused."""

    request: int = 0


@dataclass(frozen=True)
class Resume:
    arm: int = 0


@dataclass(frozen=True)
class Stop:
    """End the run after the present step."""


Command: TypeAlias = SetKnobs | RunProbe | Profile | Pause | Resume | Stop
COMMANDS: dict[str, type[Command]] = {
    kind.__name__.lower(): kind for kind in (SetKnobs, RunProbe, Profile, Pause, Resume, Stop)
}
"""Commands by their tag on the wire, which stands under the key `command`."""


def command_of(fields: Mapping[str, Any]) -> Command:
    """The command that a decoded JSON line holds. Raises KeyError for an unknown tag, TypeError for
    other fields."""
    rest = dict(fields)
    return COMMANDS[rest.pop("command")](**rest)


# --- why something failed, in words for the user --------------------------------------------------

UNEXPECTED = "an unexpected error"


class PlainError(RuntimeError):
    """An error whose message is a sentence of ours for the user."""


def reason(problem: BaseException) -> str:
    """Return one line that says why something failed, without the name of an exception class. Some
    messages explain nothing alone, for example the message of a KeyError: the line then says
    "an unexpected error"."""
    lines = str(problem).strip().splitlines()
    if not lines:
        return UNEXPECTED
    if isinstance(problem, PlainError) or (" " in lines[0] and not isinstance(problem, KeyError)):
        return lines[0]
    return f"{UNEXPECTED}: {lines[0]}"
