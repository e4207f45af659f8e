"""Every message there is, as one tagged union. `t` is seconds on CLOCK_MONOTONIC, which all processes share.

Events travel from children to the runtime; the runtime's own conclusions are events too, so a recording of all of
them is enough to rebuild every screen. Commands travel the other way.
"""

from __future__ import annotations

from typing import cast

import msgspec

from gpuconsole.model.experiments.baseline import BaselineComparison
from gpuconsole.model.experiments.certificate import Tuning
from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine.calibration import Reached
from gpuconsole.model.machine.device import Device, Link
from gpuconsole.model.machine.process import Process
from gpuconsole.model.profile import ProfileReport
from gpuconsole.model.run import RunState, Step
from gpuconsole.model.serving import Objective, Request
from gpuconsole.model.snapshot import Environment
from gpuconsole.wire.marks import MarkedStep


class Event(msgspec.Struct, tag_field="event", tag=str.lower, frozen=True, omit_defaults=True):
    t: float


# --- from the sampler ---------------------------------------------------------------------------------------


class Hello(Event, frozen=True):
    """The first message of a child, and of a recording. `wall_time` is Unix time at `t`."""

    role: str
    pid: int
    version: str
    wall_time: float


class Devices(Event, frozen=True):
    """What there is to watch. `reason` says why there is no GPU, where there is none; `cuda` is the newest CUDA that the driver runs."""

    devices: list[Device]
    driver: str | None = None
    reason: str = ""
    cuda: str = ""


class Sample(Event, frozen=True):
    """One reading of one device; keys are names in the metric catalogue. `sources`: those that came from another source than catalogued."""

    device: str
    values: dict[str, float]
    sources: dict[str, str] = {}


class Unavailable(Event, frozen=True):
    """Metrics that a device cannot report, each with the reason. Replaces what was said before of that device."""

    device: str
    reasons: dict[str, str]


class DeviceLost(Event, frozen=True):
    device: str
    reason: str


class Topology(Event, frozen=True):
    """How the GPUs are linked, each pair once."""

    links: list[Link]


class Processes(Event, frozen=True):
    """All processes on all devices; replaces what was said before. `reasons`: devices that do not tell theirs, and why."""

    processes: list[Process]
    reasons: dict[str, str] = {}


class Xid(Event, frozen=True):
    """The driver reported an error of a device."""

    device: str
    code: int
    meaning: str = ""


class SourceState(Event, frozen=True):
    """How a source keeps its beat: `period_s` as it really is. `stuck_s` above 0: it has not answered for so long.

    `detail` says in words what is slow or stuck; `missed` counts rounds that were skipped, since the source began; `opening`: it has
    not begun yet (a driver without persistence mode takes seconds for each GPU).
    """

    source: str
    period_s: float
    stuck_s: float = 0.0
    detail: str = ""
    missed: int = 0
    opening: bool = False


# --- from a worker ------------------------------------------------------------------------------------------


class Progress(Event, frozen=True):
    """What a worker is doing before its first step: importing, calibrating, building, warming."""

    stage: str
    detail: str = ""


class Started(Event, frozen=True):
    """The first step is about to begin, or the knobs have changed: facts about the workload as it now is.

    `facts`: `parameters`, `flops_per_sample`, `peak_flops_per_s` (measured here), ... see Workload implementations.
    """

    knobs: Knobs
    facts: dict[str, float]
    notes: dict[str, str] = {}


class RankJoined(Event, frozen=True):
    """A process of a run that has several is there. `leads`: its steps stand for the run's. `token` proves that it may join."""

    rank: int
    host: str
    pid: int
    leads: bool = False
    token: str = ""


class Doing(Event, frozen=True):
    """What a process's training thread is doing: the innermost calls, outermost first."""

    rank: int
    calls: str


class Steps(Event, frozen=True):
    """Steps done since the last message, with the training thread's cumulative CPU and run-queue seconds at `t`.

    `overhead_s` is the cumulative time that measuring has cost; `dropped` counts messages lost to a full pipe.
    `counters`: totals since the process began (garbage collection, the loader's epochs, exchanges of gradients, its memory as it is), and
    where the workload is compiled what torch.compile has done.
    """

    steps: list[Step]
    cpu_s: float
    runq_s: float
    overhead_s: float
    memory_bytes: float
    dropped: int = 0
    rank: int = 0
    counters: dict[str, float] = {}


class MarkedSteps(Event, frozen=True):
    """What a training worker sends for `Steps`, which it becomes as it is decoded; the other fields are alike."""

    steps: list[MarkedStep]
    cpu_s: float
    runq_s: float
    overhead_s: float
    memory_bytes: float
    dropped: int = 0
    rank: int = 0
    counters: dict[str, float] = {}

    def added_up(self) -> Steps:
        """Raises IndexError or ValueError where a step has no marks, or not as many phases as moments."""
        steps = [step.step() for step in self.steps]
        return Steps(self.t, steps, self.cpu_s, self.runq_s, self.overhead_s, self.memory_bytes, self.dropped, self.rank, self.counters)


class Requests(Event, frozen=True):
    """Requests that ended since the last message, and how the load generator is doing.

    `active`: on their way now. `lateness_s`: 95th percentile, since the last message, of how late the generator's own event loop was. `cpu_s`:
    its CPU time so far. `dropped` counts messages lost. `shared_prefix_ratio`: of the text of the last prompts (of all recorded
    ones), the share with which another of them begins too; None until there are some.
    """

    requests: list[Request]
    active: int = 0
    lateness_s: float = 0.0
    cpu_s: float = 0.0
    dropped: int = 0
    shared_prefix_ratio: float | None = None


class ServerState(Event, frozen=True):
    """What a model server told of itself at `t`: `gauges` as they stood, `totals` since it began (names of the catalogue, without `server.`)."""

    gauges: dict[str, float]
    totals: dict[str, float]


class KnobsSet(Event, frozen=True):
    """The answer to SetKnobs: in force from `step` on, or refused with `error` and nothing changed."""

    request: int
    step: int
    knobs: Knobs
    error: str | None = None


class ProbeDone(Event, frozen=True):
    """What a probe measured, as signals; or why it could not."""

    request: int
    probe: str
    signals: dict[str, Signal] = {}
    error: str | None = None
    cost_s: float = 0.0


class Paused(Event, frozen=True):
    """The answer to Pause: its steps are done, on the device too, and none follows. (A loader's workers may still fill their queues.)"""

    request: int


class Profiled(Event, frozen=True):
    """What a profiler window showed; or why there is none. `cost_s`: for how long the workload stood under the profiler."""

    request: int
    report: ProfileReport | None = None
    error: str | None = None
    cost_s: float = 0.0


class Failed(Event, frozen=True):
    """The workload ended by an error: `cause` is one line for people, `detail` the traceback's end."""

    cause: str
    detail: str = ""


class Calibrated(Event, frozen=True):
    """One figure of a calibration: what the machine reaches, or why that is not known."""

    reached: Reached


# --- the runtime's own --------------------------------------------------------------------------------------


class EnvironmentKnown(Event, frozen=True):
    environment: Environment


class RunOpened(Event, frozen=True):
    """A run begins, or a kept change turns the running one into the next. `objective`: what a request must keep (`--slo`)."""

    run: str
    scenario: str
    workload: str
    knobs: Knobs
    device: str
    changes: Knobs = {}
    objective: Objective | None = None


class RunClosed(Event, frozen=True):
    run: str
    state: RunState
    error: str | None = None


class Found(Event, frozen=True):
    """All rules' conclusions about a run, best first, and the signals behind them; replaces the earlier ones."""

    run: str
    findings: list[Finding]
    signals: dict[str, Signal] = {}


class Compared(Event, frozen=True):
    """A run beside its baseline; replaces what was said before."""

    run: str
    baseline: BaselineComparison


class SamplerEnded(Event, frozen=True):
    """The sampler ended, or was replaced; another one starts. `text` says why, in one line for the person at the screen."""

    text: str
    level: str = "warning"


class TrialUpdate(Event, frozen=True):
    trial: Trial


class TuningUpdate(Event, frozen=True):
    """A tuning session has begun, has tried something, or has ended."""

    tuning: Tuning


class Note(Event, frozen=True):
    """One line for the person at the screen."""

    text: str
    level: str = "info"


AnyEvent = (
    Hello | Devices | Sample | Unavailable | DeviceLost | Topology | Processes | Xid | SourceState | Progress | Started | RankJoined | Doing | Steps | Requests | ServerState | KnobsSet | ProbeDone | Paused | Profiled | Failed | Calibrated
    | EnvironmentKnown | RunOpened | RunClosed | Found | Compared | SamplerEnded | TrialUpdate | TuningUpdate | Note
)  # fmt: skip


def confirmed_knobs(event: AnyEvent) -> Knobs | None:
    """The knobs that a worker confirms to be in force by this event; None for all other events. A refused change confirms the old knobs."""
    return event.knobs if isinstance(event, Started | KnobsSet) else None


# --- commands to a child ------------------------------------------------------------------------------------


class Command(msgspec.Struct, tag_field="command", tag=str.lower, frozen=True, omit_defaults=True):
    pass


class Start(Command, frozen=True):
    """Run `workload` until told to stop. `device` is `cpu` or `gpu:N` in NVML's order; `uuid` names that GPU to CUDA.

    `options`: what a model server needs beside knobs: `url`, `model`, `api_key_env` (the name of a variable, never the key), ...
    """

    workload: str
    knobs: Knobs
    device: str
    uuid: str = ""
    seed: int = 0
    max_steps: int = 0
    options: dict[str, str] = {}


class SetKnobs(Command, frozen=True):
    """Change hot knobs between two steps; later steps carry `arm`."""

    request: int
    changes: Knobs
    arm: int = 0


class RunProbe(Command, frozen=True):
    request: int
    probe: str


class Profile(Command, frozen=True):
    """Train `steps` steps under the profiler; the trace is kept, gzipped, at the path `keep`."""

    request: int
    steps: int
    keep: str


class Pause(Command, frozen=True):
    """Stand still between two steps until Resume, so that another worker has the device to itself. Answered by Paused."""

    request: int = 0


class Resume(Command, frozen=True):
    arm: int = 0


class WhatNow(Command, frozen=True):
    """Answered by `Doing`, by a thread of its own, also while the training thread hangs."""


class Stop(Command, frozen=True):
    pass


AnyCommand = Start | SetKnobs | RunProbe | Profile | Pause | Resume | WhatNow | Stop

encode = msgspec.json.Encoder().encode
_decode_sent = msgspec.json.Decoder(AnyEvent | MarkedSteps).decode


def decode_event(line: bytes | str) -> AnyEvent:
    """The event that `line` tells. Raises msgspec.DecodeError where it tells none."""
    event = _decode_sent(line)
    if not isinstance(event, MarkedSteps):
        return cast("AnyEvent", event)
    try:
        return event.added_up()
    except (IndexError, ValueError) as error:
        raise msgspec.ValidationError(f"marks that make no step: {error}") from None


decode_command = msgspec.json.Decoder(AnyCommand).decode
