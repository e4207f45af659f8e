"""Runs: a scenario with knob values, running or finished, with its measurements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from gpuconsole.agent.protocol import COLLECTIVE_KINDS as COLLECTIVE_KINDS
from gpuconsole.agent.protocol import COUNTS as COUNTS
from gpuconsole.agent.protocol import PHASES as PHASES
from gpuconsole.agent.protocol import PROBE as PROBE
from gpuconsole.agent.protocol import SETTLING as SETTLING
from gpuconsole.agent.protocol import Arrival as Arrival
from gpuconsole.agent.protocol import CollectiveKind as CollectiveKind
from gpuconsole.agent.protocol import Collectives as Collectives
from gpuconsole.agent.protocol import Exchange as Exchange
from gpuconsole.model.comparison import BaselineComparison
from gpuconsole.model.figures import Attainable, Figure
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.job import EFFECTS, JOB, PERMISSIONS, JobFacts
from gpuconsole.model.knobs.catalogue import (
    CATALOGUE,
    GROUPS,
    KnobError,
    Knobs,
    check_knobs,
    describe_changes,
)
from gpuconsole.model.knobs.knob import live_limit_fact
from gpuconsole.model.knobs.serving import LIVE_FLAG, LIVE_KNOBS
from gpuconsole.model.memory import MemoryByLine, MemoryFailure
from gpuconsole.model.profile import ProfileReport
from gpuconsole.model.serving import WATCHED, ServerFacts
from gpuconsole.model.stacks import Place

IN_A_STEP = (
    "data_wait", "h2d", "generation", "forward", "loss", "backward", "optimizer", "comm",
    "logging", "checkpoint", "eval", "other",
)  # fmt: skip
"""The phases in the order of a step. Everything that people read uses this order."""

CLIENT_WORKLOAD = "inference.client"
"""The workload of a run that another client has measured: its figures come from the result file of
the client."""

MATRIX_PRECISIONS = ("tf32", "fp32")
"""The values of the knob `precision` that are a flag of torch: a job can change between these while
it runs."""

LOAD_KNOBS = {knob.name for knob in GROUPS["load"]}

RunState = Literal["starting", "running", "finished", "stopped", "failed"]


class Validity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether the figures of a serving run can be trusted.

    `valid`: yes. `degraded`: with care, for example because the client lacked CPU time, the server
    restarted, or a part of the requests failed. `invalid`: no, because most requests failed or no
    request was answered. `reasons`: one line each, the most important first.
    """

    verdict: Literal["valid", "degraded", "invalid"]
    reasons: list[str] = []


class Step(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One training step, measured by the worker. All times in seconds.

    `phases` has the order of PHASES; an older recording does not have the newest parts, and counts
    their time in other parts. `runq` is the run-queue delay of the training thread per phase, on
    sampled steps only (agent.account).
    `kind`: COUNTS, SETTLING or PROBE.

    In a serving run: one tick of the load generator's clock with `samples` answered requests and
    `tokens` generated tokens, without phases.
    """

    index: int
    t: float
    wall_s: float
    samples: int
    tokens: int
    phases: tuple[float, ...]
    runq: tuple[float, ...] | None = None
    loss: float | None = None
    arm: int = 0
    kind: int = 0

    def __post_init__(self) -> None:
        if 0 < len(self.phases) < len(PHASES):
            more = (0.0,) * (len(PHASES) - len(self.phases))
            msgspec.structs.force_setattr(self, "phases", self.phases + more)
            msgspec.structs.force_setattr(
                self, "runq", None if self.runq is None else self.runq + more
            )


class Distribution(msgspec.Struct, frozen=True, omit_defaults=True):
    """`within`: for percentiles from a server's histogram, the bounds of the bucket that each one
    is in. The upper bound of the last bucket is not known."""

    mean: float
    std: float
    n: int
    p50: float
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    within: dict[str, tuple[float, float | None]] = {}


class Summary(msgspec.Struct, omit_defaults=True):
    """The figures of a run over its steady steps. None: not measured; `Run.unavailable` holds the
    reason. `model.figures` has a row for each.

    Means, rates, shares and MFU are those of all steady steps. Spreads and percentiles are those of
    the last 20 000. In a live view all of them are those of the last steps.

    In a serving run `phases_ratio` describes a request (SERVING_PHASES), and `steps` counts ticks
    of the load generator. `goodput_per_s` counts requests within the objective (`--slo`).
    `failures` counts failed requests by cause. `client_runq_ratio`: the share of the time in which
    the load generator was ready to run and waited for a CPU. `mfu_causal_ratio`: MFU without the
    masked half of the attention scores, where attention is causal; `mfu_ratio` counts all scores.
    `mfu_at_least`: the FLOPs of some operators are not known. `mfu_above_peak`: the FLOP/s are
    above the peak, so there is no MFU.
    `hfu_ratio`: MFU with what the backward pass computes a second time (checkpoints, scores of
    fused attention). `runq_ratio`: the share of the step time in which the training thread waited
    for a CPU, from the steps with a reading of this wait. `whole_ratio`: the work of all processes
    of a user's job divided by the work of the leading process. Rates are the rates of the whole
    job. MFU is the MFU of the leading process on its GPU. `overhead_s_per_step`: without probes,
    which took `probes_s` in the whole run.
    """

    tokens_per_s: Distribution | None = None
    samples_per_s: Distribution | None = None
    step_time_s: Distribution | None = None
    phases_ratio: dict[str, float] = {}
    mfu_ratio: float | None = None
    mfu_causal_ratio: float | None = None
    mfu_at_least: bool = False
    mfu_above_peak: bool = False
    hfu_ratio: float | None = None
    mfu_peak_source: str = ""
    flops_per_s: float | None = None
    mbu_ratio: float | None = None
    mbu_peak_source: str = ""
    memory_bytes_per_s: float | None = None
    memory_peak_bytes: float | None = None
    energy_j: float | None = None
    tokens_per_j: float | None = None
    flops_per_j: float | None = None
    cost_per_million_tokens: float | None = None
    overhead_s_per_step: float | None = None
    probes_s: float | None = None
    runq_ratio: float | None = None
    whole_ratio: float = 1.0
    ttft_s: Distribution | None = None
    itl_s: Distribution | None = None
    tpot_s: Distribution | None = None
    e2e_s: Distribution | None = None
    chunk_gap_s: Distribution | None = None
    client_queue_s: Distribution | None = None
    client_runq_ratio: float | None = None
    requests_per_s: Distribution | None = None
    goodput_per_s: float | None = None
    requests: int = 0
    failed_requests: int = 0
    failures: dict[str, int] = {}
    steps: int = 0
    loss_first: float | None = None
    loss_last: float | None = None

    @property
    def agent_ratio(self) -> float:
        """The share of a user's job's time that the agent takes between steps. No step and no rate
        contains it. 0 where it is not known."""
        own_s = self.overhead_s_per_step or 0.0
        return own_s / (own_s + self.step_time_s.mean) if own_s > 0 and self.step_time_s else 0.0


class SeriesData(msgspec.Struct, omit_defaults=True):
    """A series in a snapshot: times in seconds since the start of the session, and values.

    `w`: the weight of each value: the number of samples of which the value is the mean, or for a
    rate the seconds over which it was measured. Empty if all weights are equal, and in files of
    earlier versions.
    """

    t: list[float]
    v: list[float]
    source: str
    w: list[float] = []

    def __post_init__(self) -> None:
        if len(self.t) != len(self.v):
            raise ValueError(f"a series has {len(self.t)} times and {len(self.v)} values")
        if self.w and len(self.w) != len(self.v):
            raise ValueError(f"a series has {len(self.w)} weights and {len(self.v)} values")

    @property
    def weights(self) -> list[float]:
        """The weight of each value."""
        return self.w or [1.0] * len(self.v)


class Rank(msgspec.Struct, omit_defaults=True):
    """One process of a run with several processes, over its steady steps. `leads`: the steps of
    this process represent the run."""

    rank: int
    host: str
    pid: int
    steps: int = 0
    step_time_s: Distribution | None = None
    phases_ratio: dict[str, float] = {}
    memory_peak_bytes: float | None = None
    leads: bool = False

    @property
    def busy_s(self) -> float | None:
        """Mean time of a step in seconds without communication. Communication includes the wait for
        other processes."""
        return (
            self.step_time_s.mean * (1 - self.phases_ratio.get("comm", 0.0))
            if self.step_time_s
            else None
        )


class Run(msgspec.Struct, omit_defaults=True):
    """One scenario with one set of knob values. `signals` are the inputs of the rules, so that the
    rules can run again.

    `facts`: the facts that the workload reported (parameters, FLOPs of a sample); the models use
    these facts. `figures`: predictions of the analytical models next to measurements. `attainable`:
    the rate that the hardware could reach for this work. `ranks`: the processes of a run with
    several processes. `baseline`: comparison with kept runs of this machine. `profile`: the last
    profiler window. `server`: what the model server reports about itself. `elsewhere`: the console
    did not start the model server, so the knobs of the server in `knobs` have no effect (see
    `settings`). `server_devices`: the GPUs of a watched server on this machine, if the driver lists
    the server's processes; the GPUs of our own server, if it uses several. `validity`: whether the
    figures of a serving run can be trusted; None for a training run.
    `at_step`: the step (or the request) before which `changes` took effect, in a user's job in all
    its processes; 0: not known. `job`: what is known about the user's own program; `command_digest`
    identifies its command, and `command` is the command, where the user wants it stored. `effects`:
    for each knob that can change while the job runs, what a change does to its numbers (one of
    `model.job.EFFECTS`). `varies`: the knobs that the job changes by itself: they are no kept
    changes.
    `traceback`: the last lines of the traceback of what ended the workload; of a job, of what
    switched the agent off. `memory_failures`: the last allocations of a job for which its GPU had
    no memory, the oldest first. `memory_lines`: with --memory, the lines that held its memory.
    `places`: the functions of a job with the largest shares of the time of a step, the largest
    first.
    `client`: the program that measured the run, with its version, where that was another client
    than ours; then `knobs` are the load alone.
    """

    id: str
    scenario: str
    workload: str
    knobs: Knobs
    device: str
    state: RunState = "starting"
    error: str | None = None
    started: str = ""
    duration_s: float = 0.0
    steady_from_s: float | None = None
    changes: Knobs = {}
    at_step: int = 0
    summary: Summary = msgspec.field(default_factory=Summary)
    series: dict[str, SeriesData] = {}
    unavailable: dict[str, str] = {}
    signals: dict[str, Signal] = {}
    facts: dict[str, float] = {}
    findings: list[Finding] = []
    figures: list[Figure] = []
    ranks: list[Rank] = []
    baseline: BaselineComparison | None = None
    profile: ProfileReport | None = None
    server: ServerFacts | None = None
    elsewhere: bool = False
    server_devices: list[str] = []
    validity: Validity | None = None
    job: JobFacts | None = None
    command_digest: str = ""
    command: tuple[str, ...] = ()
    effects: dict[str, str] = {}
    varies: list[str] = []
    attainable: Attainable | None = None
    traceback: list[str] = []
    memory_failures: list[MemoryFailure] = []
    memory_lines: list[MemoryByLine] = []
    places: list[Place] = []
    client: str = ""

    @property
    def is_job(self) -> bool:
        """Whether the run is a training job of the user's own."""
        return self.workload == JOB

    @property
    def serves(self) -> bool:
        """Whether the run is a model server under load. Otherwise the run trains."""
        return self.workload.startswith("inference.")

    @property
    def watched(self) -> bool:
        """Whether the run only watches a model server: the load is that of other clients."""
        return self.workload == WATCHED

    @property
    def engine(self) -> str:
        """The engine of a model server, as in data/engines.toml; empty where nothing names it."""
        fact = self.server.engine if self.server is not None else None
        return str(fact.value) if fact is not None else ""

    @property
    def place(self) -> str:
        """`on gpu:0`; of a server that is only watched the device is known only where its processes
        are on this machine."""
        if self.watched and not self.server_devices:
            return "watched"
        devices = ", ".join(self.server_devices or [self.device])
        return f"{'watched, ' if self.watched else ''}on {devices}"

    @property
    def settings(self) -> Knobs:
        """The knobs in force. A server that was not started here has the settings that it reports;
        its other settings are unknown, and left out. So are limits that a server of ours has chosen
        itself, where it does not report them."""
        if not self.elsewhere:
            return {
                name: value for name, value in self.knobs.items() if value or name not in LIVE_KNOBS
            }
        load = {name: value for name, value in self.knobs.items() if not _of_server(name)}
        return {**load, **(self.server.settings() if self.server is not None else {})}

    @property
    def server_numbers(self) -> dict[str, float]:
        """The facts of the workload, and the numbers that the model server reports about itself."""
        return {**(self.server.numbers() if self.server is not None else {}), **self.facts}

    def why_not(self, changes: Knobs) -> str:
        """Why the console cannot try `changes` on this run, in one line; empty where it can. Only a
        restart changes a server's settings."""
        for name, value in changes.items():
            limit = self.facts.get(live_limit_fact(name)) if self.watched else None
            if limit is not None:
                if not CATALOGUE[name].applies_live(value, self.facts):
                    return (
                        f"{name}: a running server takes at most the value of its start, {limit:g};"
                        " restart the server with the new value"
                    )
                if not value:
                    return f"{name}: name a limit of 1 or more"
            elif self.elsewhere and _of_server(name):
                started = (
                    ""
                    if not self.watched or name not in LIVE_KNOBS or self.engine != "vllm"
                    else f", or start vLLM once with {LIVE_FLAG} to try lower values while it runs"
                )
                return (
                    f"{name}: gpuconsole did not start this server; restart the server with the new"
                    f" value{started}"
                )
            if (self.serves or self.is_job) and (reason := self.unavailable.get(f"knob.{name}")):
                return f"{name}: {reason}"
            if self.is_job and name == "precision" and value not in MATRIX_PRECISIONS:
                return (
                    f"{name}: a program that runs can change between"
                    f" {' and '.join(MATRIX_PRECISIONS)} only: it sets {value} when it starts"
                )
            if self.is_job and name not in self.knobs:
                return f"{name}: the console cannot change it from outside; change your code"
        return ""

    def effect(self, changes: Knobs) -> str:
        """What `changes` do to the numbers of the user's own job: the strongest of their effects;
        empty where it is not known."""
        order, effects = list(EFFECTS), [self.effects.get(name, "") for name in changes]
        return (
            max(effects, key=order.index)
            if effects and all(effect in order for effect in effects)
            else ""
        )

    def permissions(self, changes: Knobs) -> list[str]:
        """The permissions of the user that `changes` need in a job of the user's own: NUMERICS,
        LOADER."""
        effects = {self.effects.get(name, "") for name in changes}
        return [permission for effect, permission in PERMISSIONS.items() if effect in effects]

    def effective(self, changes: Knobs) -> Knobs:
        """The entries of `changes` that alter a knob of this run. Raises KnobError for a value that
        is not allowed, and if no knob is altered."""
        allowed = check_knobs(dict(changes), tuple(self.knobs), self.scenario)
        changed = {
            name: value for name, value in allowed.items() if self.settings.get(name) != value
        }
        if not changed:
            raise KnobError(f"{describe_changes(allowed)}: already in force")
        return changed

    def applies_live(self, changes: Knobs) -> bool:
        """Whether all `changes` take effect in the worker of this run, without another process (see
        `Knob.applies_live`)."""
        if self.is_job:
            return not self.why_not(changes)
        return all(
            CATALOGUE[name].applies_live(value, self.facts) for name, value in changes.items()
        )

    @property
    def slowest(self) -> tuple[int, float] | None:
        """The slowest process and its time over the time of the others; None before a measurement.

        The time of a pass alone (probe P8), or the time of a step without communication (step
        breakdown); the larger ratio counts.
        """
        ways = (
            ("comm.straggler_ratio", "comm.slowest_rank"),
            ("ranks.busy_ratio", "ranks.busiest"),
        )
        gaps = [
            (self.signals[ratio].value, int(self.signals[rank].value))
            for ratio, rank in ways
            if {ratio, rank} <= self.signals.keys()
        ]
        ratio, rank = max(gaps, default=(0.0, -1))
        return (rank, ratio) if gaps else None

    @property
    def begun_s(self) -> float | None:
        """The session time of the first step; None where the run has no series of its work."""
        ends = [
            data.t[-1]
            for key, data in self.series.items()
            if key.startswith("workload.") and data.t
        ]
        return max(ends) - self.duration_s if ends else None

    @property
    def throughput(self) -> tuple[Distribution | None, str]:
        """The main rate of the run and its unit."""
        if self.summary.tokens_per_s is not None:
            return self.summary.tokens_per_s, "tokens/s"
        return self.summary.samples_per_s, "samples/s"


def of_same_job(run: Run, runs: Iterable[Run]) -> set[str]:
    """The ids of these runs of the same job as `run`: the same scenario or program, with the same
    command."""
    return {
        other.id
        for other in runs
        if (other.scenario, other.workload, other.command_digest)
        == (run.scenario, run.workload, run.command_digest)
    }


def _of_server(name: str) -> bool:
    """Whether the knob `name` is a setting of a model server, not of the load. The shape of the
    embedded model is such a setting."""
    return name not in LOAD_KNOBS
