"""All messages of the wire. `t` is seconds on CLOCK_MONOTONIC, which all processes of a machine
share.

Children send events to the console. The conclusions of the console are events too, so a recording
of all events is enough to rebuild every screen. The console sends commands to children.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec

from gpuconsole.agent.protocol import COMMANDS, PHASES, MarkedStep
from gpuconsole.agent.protocol import Pause as Pause
from gpuconsole.agent.protocol import Profile as Profile
from gpuconsole.agent.protocol import Resume as Resume
from gpuconsole.agent.protocol import RunProbe as RunProbe
from gpuconsole.agent.protocol import SetKnobs as SetKnobs
from gpuconsole.agent.protocol import Stop as Stop
from gpuconsole.model import encoding
from gpuconsole.model import text as texts
from gpuconsole.model.certificate import Tuning
from gpuconsole.model.comparison import BaselineComparison
from gpuconsole.model.experiments import Trial
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.job import JobFacts
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Reached
from gpuconsole.model.memory import MemoryByLine, MemoryFailure
from gpuconsole.model.profile import ProfileReport
from gpuconsole.model.run import Collectives, Exchange, RunState, Step
from gpuconsole.model.serving import Objective, Request, ServerFacts
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.stacks import StackSample
from gpuconsole.wire.readings import DeviceKnown as DeviceKnown
from gpuconsole.wire.readings import DeviceLost as DeviceLost
from gpuconsole.wire.readings import Devices as Devices
from gpuconsole.wire.readings import Event as Event
from gpuconsole.wire.readings import Hello as Hello
from gpuconsole.wire.readings import Processes as Processes
from gpuconsole.wire.readings import Sample as Sample
from gpuconsole.wire.readings import SourceState as SourceState
from gpuconsole.wire.readings import Topology as Topology
from gpuconsole.wire.readings import Unavailable as Unavailable
from gpuconsole.wire.readings import Xid as Xid

# --- steps in the form in which a worker sends them -----------------------------------------------
# The console adds up the phases, because this work is slow in a training thread with cold caches.


def step_of(marked: MarkedStep) -> Step:
    """Return the step with the wall time and the run-queue delay of each phase added up. Raise
    IndexError or ValueError where the step has no marks, an unknown phase, different numbers of
    phases and times, or a loss that is no number."""
    if min(marked.ended, default=0) < 0:
        raise ValueError("a phase below 0")
    return Step(
        marked.index,
        marked.times[-1],
        marked.times[-1] - marked.start,
        marked.samples,
        marked.tokens,
        _by_phase(marked.ended, [marked.start, *marked.times]),
        _by_phase(marked.ended, marked.runq) if marked.runq else None,
        None if marked.loss is None else float(marked.loss),
        marked.arm,
        marked.kind,
    )


def _by_phase(ended: list[int], readings: list[float]) -> tuple[float, ...]:
    """Return the increase of a reading in each phase. `readings` begins with the reading at the
    start of the step."""
    increases = [0.0] * len(PHASES)
    for phase, (before, after) in zip(ended, itertools.pairwise(readings), strict=True):
        increases[phase] += after - before
    return tuple(increases)


# --- events ---------------------------------------------------------------------------------------
# --- from a worker --------------------------------------------------------------------------------


class Progress(Event, frozen=True):
    """The activity of a worker before its first step: importing, calibrating, building,
    warming up."""

    stage: str
    detail: str = ""


class Started(Event, frozen=True):
    """The first step begins now, or the knobs have changed: facts about the workload with its
    present knobs.

    `facts`: `parameters`, `flops_per_sample`, `peak_flops_per_s` (measured here), ... see Workload
    implementations.
    """

    knobs: Knobs
    facts: dict[str, float]
    notes: dict[str, str] = {}


class RankJoined(Event, frozen=True):
    """A process joined a run with several processes. `leads`: its steps represent the run. `token`
    proves that it may join. `world_size`: the number of processes of a user's job, 1 for one that
    trains alone; 0: not said."""

    rank: int
    host: str
    pid: int
    leads: bool = False
    token: str = ""
    world_size: int = 0


class Activity(Event, tag="doing", frozen=True):
    """The current activity of the training thread of a process: its innermost calls, the outermost
    of them first."""

    rank: int
    calls: str


def leads(joined: Collection[RankJoined], rank: int) -> bool:
    """Return whether the steps of `rank` stand for the run. A run in which no process has joined
    has one process."""
    return any(event.leads for event in joined if event.rank == rank) if joined else True


NotFinite = Literal["nan", "inf", "-inf"]
"""A loss that is not finite, as text: JSON has no number for it."""


class Steps(Event, frozen=True):
    """Steps done since the last message, with the training thread's cumulative CPU and run-queue
    seconds at `t`.

    `overhead_s` is the cumulative time of measuring; `dropped` counts messages lost because of a
    full pipe. `counters`: totals since the process began (garbage collection, epochs of the loader,
    exchanges of gradients, compilation), and its present memory. `exchanges`: the exchanges
    of gradients that DistributedDataParallel has timed in a user's job. `collectives`: the
    collectives that torch has recorded in a user's job; only some messages have them. `not_finite`:
    the losses that are NaN or infinite, by the place of their step in `steps`, because JSON has no
    number for such a loss. The steps have these losses too.
    """

    steps: list[Step]
    cpu_s: float
    runq_s: float
    overhead_s: float
    memory_bytes: float
    dropped: int = 0
    rank: int = 0
    counters: dict[str, float] = {}
    exchanges: list[Exchange] = []
    collectives: Collectives | None = None
    not_finite: dict[int, NotFinite] = {}

    def __post_init__(self) -> None:
        losses = {
            place: str(step.loss)
            for place, step in enumerate(self.steps)
            if step.loss is not None and not math.isfinite(step.loss)
        }
        if losses:
            msgspec.structs.force_setattr(self, "not_finite", losses)
        # The steps of a decoded message lack the losses that are not finite: put them back.
        for place, loss in self.not_finite.items():
            if place < len(self.steps):
                self.steps[place] = msgspec.structs.replace(self.steps[place], loss=float(loss))


class MarkedSteps(Event, frozen=True):
    """The form in which a training worker sends `Steps`. Decoding turns it into `Steps`; the other
    fields are the same."""

    steps: list[MarkedStep]
    cpu_s: float
    runq_s: float
    overhead_s: float
    memory_bytes: float
    dropped: int = 0
    rank: int = 0
    counters: dict[str, float] = {}

    def added_up(self) -> Steps:
        """Return the message as `Steps`, with the times of each phase added up. Raise IndexError or
        ValueError where `step_of` refuses a step."""
        steps = [step_of(step) for step in self.steps]
        return Steps(
            self.t,
            steps,
            self.cpu_s,
            self.runq_s,
            self.overhead_s,
            self.memory_bytes,
            self.dropped,
            self.rank,
            self.counters,
        )


# --- from the agent inside a user's own job -------------------------------------------------------


class JobProcess(Event, frozen=True):
    """The first message of a process of a user's job, when the program imports torch. `token`
    proves that the process belongs to the job.

    `script`: the file that Python runs, without its folder; `parent`: the pid of the parent
    process. `torch`: its version, and `cuda`: the CUDA version that it is built for, empty for a
    build without CUDA. `rank` and `world_size` are those of torchrun's environment (0 and 1 without
    it). The process sends `RankJoined` with its first optimizer step.
    """

    pid: int
    parent: int
    script: str
    python: str
    torch: str = ""
    cuda: str = ""
    rank: int = 0
    world_size: int = 1
    token: str = ""


class JobKnown(Event, frozen=True):
    """What the agent in the process `rank` knows about the program; replaces the previous message
    of this process. The message of the leading process stands for the run. The knobs in force and
    the facts about the workload come with `Started`."""

    rank: int
    facts: JobFacts


class Segments(Event, frozen=True):
    """The form in which the agent inside a user's job sends its steps; `session.segments` makes
    `Steps` of it.

    `packed`: base64 of the steps, see `agent.hooks.recorder.pack`. The other fields are those of
    `Steps`.
    """

    packed: str
    cpu_s: float
    runq_s: float
    overhead_s: float
    memory_bytes: float
    dropped: int = 0
    rank: int = 0
    counters: dict[str, float] = {}
    exchanges: list[Exchange] = []
    collectives: Collectives | None = None


class AgentOff(Event, frozen=True):
    """The agent in a process of the job has switched itself off, and the job continues unwatched;
    or the process ends.

    `where`: the entry point that failed; empty where the console asked for the end, or where the
    process ends. `cause` is one line, `detail` the end of the traceback. `raised`: the type of the
    exception that ends the process; empty where its cause is a failed allocation.
    """

    pid: int
    rank: int
    where: str = ""
    cause: str = ""
    detail: str = ""
    raised: str = ""


class OutOfMemory(Event, frozen=True):
    """A GPU had no memory for an allocation of a user's job. The agent sends it at once: whether
    the program catches the error is not known then. The console completes it
    (`diagnosis.models.out_of_memory`), and sends it again with the same `failure.t` where the
    program has gone on."""

    pid: int
    rank: int
    failure: MemoryFailure


class MemoryOwners(Event, frozen=True):
    """Bytes on the GPU of a user's job by owner (`model.memory.OWNERS` and KEPT) at the largest
    allocation so far, and `total`, those of the card. `signals`: the peaks of the allocator, where
    the program has made them itself; otherwise empty."""

    rank: int
    owners: dict[str, float]
    signals: dict[str, Signal] = {}


class MemoryLines(Event, frozen=True):
    """With consent (`--memory`): the lines of the program that hold GPU memory. Replaces an earlier
    report of the same process and kind."""

    rank: int
    held: MemoryByLine


class Stacks(Event, frozen=True):
    """Stacks of the training thread, and of other threads that compute, since the last message,
    outside of trials and probes (`agent.hooks.sampler`)."""

    rank: int
    samples: list[StackSample]


# --- from a worker that serves --------------------------------------------------------------------


class Requests(Event, frozen=True):
    """Requests that ended since the last message, and the state of the load generator.

    `active`: requests under way. `lateness_s`: 95th percentile of the delay of the generator's
    event loop since the last message. `cpu_s`: CPU time of the generator so far. `dropped`:
    messages lost. `shared_prefix_ratio`: the share of prompt text that is a prefix of another
    prompt, over the last prompts (or all recorded prompts); None before there are prompts.
    `runq_s`: the seconds so far in which the generator was ready to run and waited for a CPU; None
    where the system does not report the wait. `down`: why the server does not answer now, in one
    line; empty while the server answers. `down_since`: the time since which the server has not
    answered, where `down` is set.
    """

    requests: list[Request]
    active: int = 0
    lateness_s: float = 0.0
    cpu_s: float = 0.0
    dropped: int = 0
    shared_prefix_ratio: float | None = None
    runq_s: float | None = None
    down: str = ""
    down_since: float = 0.0


class ServerKnown(Event, frozen=True):
    """The facts that a model server reports about itself; replaces the previous facts. A server
    that restarts may report others. `processes`: of a server on this machine that is watched."""

    facts: ServerFacts
    processes: list[int] = []


Count: TypeAlias = str | tuple[str, float]
"""A total of a model server by its name, or a bucket of a histogram by the name and its bound."""


def total_of(count: Count) -> str:
    """Return the name of a total. For a bucket, return the name of the total that counts the values
    of its histogram."""
    return count if isinstance(count, str) else f"{count[0]}_count"


class ServerState(Event, frozen=True):
    """The report of a model server at `t`: `gauges` are present values, `totals` count since the
    start of the server (names in the metric catalogue, without `server.`). `buckets`: of a server
    that is watched, the counts of its histograms up to each bound.

    `engines`: where several engines, ranks or replicas report on one page, some gauges of each of
    them; `gauges` then has the number of them, the sum of their requests, and the largest of their
    limits and shares. `process_start`: when the process that answers has started, in Unix time; 0:
    the page does not tell. The gauge `replicas` says that several servers answer behind the
    address; such a state has no totals and no buckets.
    """

    gauges: dict[str, float]
    totals: dict[str, float]
    buckets: dict[str, list[tuple[float, float]]] = {}
    engines: dict[str, dict[str, float]] = {}
    process_start: float = 0.0

    def counts(self) -> dict[Count, float]:
        """All counters: the totals and the buckets."""
        counts = dict[Count, float](self.totals.items())
        for name, bounds in self.buckets.items():
            counts.update(((name, bound), count) for bound, count in bounds)
        return counts

    def restarted_since(self, before: ServerState) -> bool:
        """Whether the server has restarted between the report `before` and this one: another
        process answers, or, where a page does not name the process, most totals have fallen. One
        total that falls is the fault of an exporter."""
        if self.process_start and before.process_start:
            return self.process_start != before.process_start
        both = [name for name in before.totals.keys() & self.totals.keys() if before.totals[name]]
        return 2 * sum(self.totals[name] < before.totals[name] for name in both) > len(both)

    def began_again(self, before: ServerState) -> frozenset[str]:
        """The totals that count from 0 again since the report `before`, as in Prometheus' rate():
        after a restart all of them, otherwise those that have fallen."""
        if self.restarted_since(before):
            return frozenset(before.totals.keys() | self.totals.keys())
        return frozenset(
            name for name, value in self.totals.items() if value < before.totals.get(name, 0.0)
        )


class KnobsSet(Event, frozen=True):
    """The answer to SetKnobs. `knobs` are in force from `step` on, in all processes. With `error`
    the change was refused, and `knobs` are the old knobs.

    `at_step`: the step of a user's job before which the process made the change, where several
    processes have agreed on it; a loader may have older batches under way then, so `step` may be
    later. In other jobs `at_step` is `step`; 0: not reported. `steps`: the value of `at_step` for
    each rank.

    One process alone reports the stages of a change. `prepared`: the process is ready at `step` and
    has changed nothing yet. `late`: the process was past the agreed step, or not ready, and has
    changed nothing.
    """

    request: int
    step: int
    knobs: Knobs
    error: str | None = None
    at_step: int = 0
    steps: dict[int, int] = {}
    prepared: bool = False
    late: bool = False


class ProbeDone(Event, frozen=True):
    """The signals that a probe measured, or the reason why it failed."""

    request: int
    probe: str
    signals: dict[str, Signal] = {}
    error: str | None = None
    cost_s: float = 0.0


class Paused(Event, frozen=True):
    """The answer to Pause: all steps are done, on the device too, and no step follows. Workers of a
    loader may still fill their queues."""

    request: int


class Profiled(Event, frozen=True):
    """The report of a profiler window, or the reason why there is no report. `cost_s`: how long the
    profiler slowed the workload.

    From a user's own job: the path of the `trace` that is to be analysed, where it is to be kept
    (empty: nowhere), and whether the work ran on a GPU. `probe`: the window answers this probe; the
    console makes a ProbeDone of it.
    """

    request: int
    report: ProfileReport | None = None
    error: str | None = None
    cost_s: float = 0.0
    trace: str = ""
    keep: str = ""
    gpu: bool = False
    probe: str = ""


class Failed(Event, frozen=True):
    """The workload ended with an error. `cause` is one line for the user, `detail` the end of the
    traceback."""

    cause: str
    detail: str = ""


class Calibrated(Event, frozen=True):
    """One figure of a calibration: the measured rate, or the reason why there is no rate."""

    reached: Reached


# --- from the console -----------------------------------------------------------------------------


class EnvironmentKnown(Event, frozen=True):
    environment: Environment


class RunOpened(Event, frozen=True):
    """A run begins, or a kept change ends the current run and begins the next. `objective`: the
    limits of a good request (`--slo`). `elsewhere`: the run loads a model server that the console
    did not start. A job of the user's own has a `digest` of its command; `command` is the command
    itself, where the user wants it stored. `gpus`: as in `Start`."""

    run: str
    scenario: str
    workload: str
    knobs: Knobs
    device: str
    changes: Knobs = {}
    objective: Objective | None = None
    elsewhere: bool = False
    digest: str = ""
    command: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()


class RunClosed(Event, frozen=True):
    run: str
    state: RunState
    error: str | None = None


class Found(Event, frozen=True):
    """The findings of all rules about a run, best first, with their signals; replaces the previous
    findings."""

    run: str
    findings: list[Finding]
    signals: dict[str, Signal] = {}


class Compared(Event, frozen=True):
    """The comparison of a run with its baseline; replaces the previous comparison."""

    run: str
    baseline: BaselineComparison


class SamplerEnded(Event, frozen=True):
    """The sampler ended, or was replaced; another one starts. `text` says why, in one line for the
    user."""

    text: str
    level: str = "warning"


class TrialUpdate(Event, frozen=True):
    trial: Trial


class TuningUpdate(Event, frozen=True):
    """A tuning session began, tried a change, or ended."""

    tuning: Tuning


class Note(Event, frozen=True):
    """One line for the user."""

    text: str
    level: str = "info"


AnyEvent = (
    Hello
    | Devices
    | DeviceKnown
    | Sample
    | Unavailable
    | DeviceLost
    | Topology
    | Processes
    | Xid
    | SourceState
    | Progress
    | Started
    | RankJoined
    | Activity
    | Steps
    | JobProcess
    | JobKnown
    | Segments
    | AgentOff
    | Requests
    | ServerKnown
    | ServerState
    | KnobsSet
    | ProbeDone
    | Paused
    | Profiled
    | OutOfMemory
    | MemoryOwners
    | MemoryLines
    | Stacks
    | Failed
    | Calibrated
    | EnvironmentKnown
    | RunOpened
    | RunClosed
    | Found
    | Compared
    | SamplerEnded
    | TrialUpdate
    | TuningUpdate
    | Note
)


def confirmed_knobs(event: AnyEvent) -> Knobs | None:
    """Return the knobs that a worker confirms to be in force by `event`; None for all other events.
    A refused change confirms the old knobs."""
    return event.knobs if isinstance(event, Started | KnobsSet) else None


# --- commands to a child --------------------------------------------------------------------------


class OwnCommand(
    msgspec.Struct, tag_field="command", tag=str.lower, frozen=True, omit_defaults=True
):
    """A command that no agent in a user's job gets."""


class Start(OwnCommand, frozen=True):
    """Run `workload` until Stop. `device` is `cpu` or `gpu:N` in NVML's order; `uuid` names that
    GPU to CUDA. `gpus`: all GPUs of a model server that uses several, `device` first.

    `options`: settings of a model server that are not knobs: `url`, `model`, `api_key_env` (the
    name of a variable, never the key), ... The load generator also gets `max_model_len`, where the
    server reports it.
    """

    workload: str
    knobs: Knobs
    device: str
    uuid: str = ""
    seed: int = 0
    max_steps: int = 0
    options: dict[str, str] = {}
    gpus: tuple[str, ...] = ()


class QueryActivity(OwnCommand, tag="whatnow", frozen=True):
    """Request the current activity of the training thread. A separate thread answers with
    `Activity`, also while the training thread hangs."""


Command: TypeAlias = Start | QueryActivity | SetKnobs | RunProbe | Profile | Pause | Resume | Stop

# One string, split: separate strings would count as words of the screen.
TEXTS = ("detail cause down error reason text").split()  # noqa: SIM905
"""Fields of events that hold the text of an exception, or may quote one."""
_TEXTS_OF = {
    kind: fields
    for kind in get_args(AnyEvent)
    if (fields := [name for name in TEXTS if name in kind.__struct_fields__])
}


def without_credentials(event: AnyEvent) -> AnyEvent:
    """Return `event` without passwords and tokens in its texts. A child does not remove them, so
    the console does, before it records or shows the event."""
    changes: dict[str, Any] = {}
    for name in _TEXTS_OF.get(type(event), ()):
        text = getattr(event, name)
        if text and (clean := texts.without_credentials(text)) != text:
            changes[name] = clean
    return msgspec.structs.replace(event, **changes) if changes else event


_TAGS: dict[type, str] = {kind: tag for tag, kind in COMMANDS.items()}


def encode(value: object) -> bytes:
    """Return an event or a command as one JSON line, without the newline, and with surrogates as
    escapes."""
    tag = _TAGS.get(type(value))
    return encoding.encode(value if tag is None else {"command": tag, **vars(value)})


_decode_sent = msgspec.json.Decoder(AnyEvent | MarkedSteps).decode


def decode_event(line: bytes | str) -> AnyEvent:
    """Return the event in `line`, without credentials in its texts. Raise msgspec.DecodeError where
    `line` holds no event."""
    try:
        event = _decode_sent(line)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8: {error.reason}") from None
    except msgspec.DecodeError:
        # The agent writes surrogates where the name of a file of the job has them.
        if (mended := encoding.without_surrogates(line)) is None:
            raise
        event = _decode_sent(mended)
    if not isinstance(event, MarkedSteps):
        return without_credentials(cast("AnyEvent", event))
    try:
        return event.added_up()
    except (IndexError, ValueError) as error:
        raise msgspec.ValidationError(f"marks that make no step: {error}") from None


_decode_own = msgspec.json.Decoder(Start | QueryActivity).decode


def decode_command(line: bytes | str) -> Command:
    """Return the command in `line`. Raise msgspec.DecodeError where `line` holds no command."""
    fields = msgspec.json.decode(line)
    kind = COMMANDS.get(fields.pop("command", "")) if isinstance(fields, dict) else None
    return _decode_own(line) if kind is None else msgspec.convert(fields, kind)
