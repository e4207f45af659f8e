"""Runs: a scenario with knob values, executing or done, and what was measured of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuconsole.model.experiments.baseline import BaselineComparison
from gpuconsole.model.figure import Figure
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.profile import ProfileReport

PHASES = ("data_wait", "h2d", "forward", "backward", "optimizer", "comm", "logging", "checkpoint", "eval", "other")
"""The exclusive parts of a step; they sum to its wall time."""

COUNTS, SETTLING, PROBE = 0, 1, 2
"""Kinds of a step: it counts, it follows a change or a pause, it belongs to a probe."""

RunState = Literal["starting", "running", "finished", "stopped", "failed"]


class Step(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One training step as the worker measured it. All times in seconds.

    `phases` follows PHASES. `runq` is the training thread's run-queue delay per phase, read now and then (workloads.account).
    `kind`: COUNTS, SETTLING or PROBE.

    Of a serving run: one tick of the load generator's clock, in which `samples` requests were answered and `tokens` generated; no phases.
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


class Distribution(msgspec.Struct, frozen=True, omit_defaults=True):
    mean: float
    std: float
    n: int
    p50: float
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class Summary(msgspec.Struct, omit_defaults=True):
    """The figures of a run, over its steady steps. None: not measured, with the reason in `Run.unavailable`.

    Of a serving run: latencies as `model.serving.FORMULAS` says, `phases_ratio` of a request (SERVING_PHASES), `steps` ticks of the load
    generator; `goodput_per_s` are requests within the objective (`--slo`), `failures` the commonest causes with how often.
    """

    tokens_per_s: Distribution | None = None
    samples_per_s: Distribution | None = None
    step_time_s: Distribution | None = None
    phases_ratio: dict[str, float] = {}
    mfu_ratio: float | None = None
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
    ttft_s: Distribution | None = None
    itl_s: Distribution | None = None
    tpot_s: Distribution | None = None
    e2e_s: Distribution | None = None
    chunk_gap_s: Distribution | None = None
    client_queue_s: Distribution | None = None
    requests_per_s: Distribution | None = None
    goodput_per_s: float | None = None
    requests: int = 0
    failed_requests: int = 0
    failures: dict[str, int] = {}
    steps: int = 0
    loss_first: float | None = None
    loss_last: float | None = None


class SeriesData(msgspec.Struct):
    """A series as stored in a snapshot: times in seconds since the session began, and values."""

    t: list[float]
    v: list[float]
    source: str


class Rank(msgspec.Struct, omit_defaults=True):
    """One process of a run that has several, over its steady steps. `leads`: its steps stand for the run's."""

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
        """Mean time of a step without communication, in which it waits for the others too."""
        return self.step_time_s.mean * (1 - self.phases_ratio.get("comm", 0.0)) if self.step_time_s else None


class Run(msgspec.Struct, omit_defaults=True):
    """One scenario with one set of knob values. `signals` is what the rules saw, so they can be run again.

    `facts`: what the workload told of itself (parameters, FLOPs of a sample), from which the models are computed.
    `figures`: the analytical models beside the measurement. `ranks`: every process, where there are several.
    `baseline`: held against runs that were kept on this machine. `profile`: the last profiler window.
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

    @property
    def serves(self) -> bool:
        """Whether this is a model server under load, rather than training steps."""
        return self.workload.startswith("inference.")

    @property
    def slowest(self) -> tuple[int, float] | None:
        """The process that the others wait for most, and its time over theirs; None before that is measured.

        In a pass by itself (probe P8) or outside of communication (step account), whichever shows more.
        """
        ways = (("comm.straggler_ratio", "comm.slowest_rank"), ("ranks.busy_ratio", "ranks.busiest"))
        known = [(self.signals[ratio].value, int(self.signals[rank].value)) for ratio, rank in ways if {ratio, rank} <= self.signals.keys()]
        ratio, rank = max(known, default=(0.0, -1))
        return (rank, ratio) if known else None

    @property
    def throughput(self) -> tuple[Distribution | None, str]:
        """The run's headline rate and its unit."""
        if self.summary.tokens_per_s is not None:
            return self.summary.tokens_per_s, "tokens/s"
        return self.summary.samples_per_s, "samples/s"
