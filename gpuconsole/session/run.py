"""One run: its steps, its knobs in force, its state, and the steps of each of its processes."""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Sequence

import msgspec

from gpuconsole.model.finding import Signal
from gpuconsole.model.job import AGENT, EFFECT, FIXED, VARIES, JobFacts
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.knob import NO_EFFECT
from gpuconsole.model.knobs.serving import LIVE_KNOBS
from gpuconsole.model.machine import Process
from gpuconsole.model.memory import MAX_FAILURES, MemoryFailure
from gpuconsole.model.profile import OP_MIX, SYNC_GAPS, window_signals
from gpuconsole.model.run import COUNTS, PHASES, Rank, Run, Step
from gpuconsole.session.communication import (
    CollectivesRecord,
    Exchanges,
    exposed_of_each,
    least_exposed_s,
    why_not_compared,
)
from gpuconsole.session.counters import CompileCounts, WorkCounts
from gpuconsole.session.figures.breakdown import steady_from
from gpuconsole.session.figures.totals import Totals
from gpuconsole.session.figures.trend import StepBlocks
from gpuconsole.session.machine import Energy
from gpuconsole.session.places import StackRecord
from gpuconsole.session.serving import ServingRecord
from gpuconsole.session.side_work import SideWork
from gpuconsole.wire.events import (
    AgentOff,
    AnyEvent,
    Failed,
    JobKnown,
    KnobsSet,
    MemoryLines,
    MemoryOwners,
    OutOfMemory,
    ProbeDone,
    Processes,
    Profiled,
    RankJoined,
    Requests,
    RunClosed,
    RunOpened,
    ServerKnown,
    ServerState,
    Stacks,
    Started,
    Steps,
    confirmed_knobs,
    leads,
)

KEPT_STEPS = 2000
MIN_STEPS = 3
SAMPLED_STEPS = 30
RECENT_STEPS = 200
COMM = PHASES.index("comm")
COLLECTIVES = "comm.collectives"
"""The key in `Run.unavailable` for the reason why the processes of a job are not compared by their
collectives."""


class Ranks:
    """The steps of each process, by rank; empty for a run in one process."""

    def __init__(self) -> None:
        self._joined: dict[int, RankJoined] = {}
        self._steps: dict[int, deque[Step]] = {}
        self._totals: dict[int, Totals] = {}
        """The sums of the steady steps; of all steps, while the run is not steady."""
        self._memory: dict[int, float] = {}
        self._last: dict[int, Steps] = {}
        self.exchanges: dict[int, Exchanges] = {}
        """What each process of a user's job has timed of its exchanges of gradients, by rank."""
        self.collectives: dict[int, CollectivesRecord] = {}
        """What torch has recorded of the collectives of each process of a user's job, by rank."""
        self.about: dict[int, JobFacts] = {}
        """What the agent in each process of a user's job says of the program, by rank."""

    def join(self, event: RankJoined) -> None:
        self._joined[event.rank] = event
        self.exchanges[event.rank] = Exchanges()
        self.collectives[event.rank] = CollectivesRecord()
        self._steps[event.rank] = deque(maxlen=KEPT_STEPS)
        self._totals[event.rank] = Totals()

    def carry_on(self, before: Ranks) -> None:
        """The same processes continue with a new run. Earlier steps do not count."""
        for event in before.joined:
            self.join(event)
        self.about = dict(before.about)

    def clear(self) -> None:
        """Delete the steps, but keep the list of processes."""
        for steps in self._steps.values():
            steps.clear()
        self._totals = {rank: Totals() for rank in self._totals}

    @property
    def joined(self) -> list[RankJoined]:
        """The first message of each process, by rank."""
        return [event for _, event in sorted(self._joined.items())]

    def leads(self, rank: int) -> bool:
        """Whether the steps of `rank` represent the run."""
        first = next(iter(self._last), rank)
        return leads(self._joined.values(), rank) and (bool(self._joined) or rank == first)

    def repeats(self, event: Steps) -> bool:
        """Return whether `event` is the last message of its process once more."""
        return event == self._last.get(event.rank)

    def add(self, event: Steps) -> None:
        self._last[event.rank] = event
        if event.rank in self._joined:
            counted = [step for step in event.steps if step.kind == COUNTS and step.arm == 0]
            self._steps[event.rank].extend(counted)
            self._totals[event.rank].add(counted)
            self._memory[event.rank] = event.memory_bytes
            self.exchanges[event.rank].add(event.exchanges, event.counters)
            self.collectives[event.rank].add(event.collectives)

    def why_not_compared(self, device: str) -> str:
        """Why the processes of a job on `device` are not compared by their collectives; empty where
        they are."""
        return why_not_compared(
            self.collectives, device, len({event.host for event in self.joined})
        )

    def begin_steady(self, since: float) -> None:
        """The run is steady from `since` on: earlier steps are in no sum."""
        for rank, steps in self._steps.items():
            self._totals[rank] = Totals([step for step in steps if step.t >= since])

    def summaries(self, limit: int | None = None) -> list[Rank]:
        """A summary of each process over its last `limit` steps (None: all), by rank."""
        return [self._summary(event, limit) for event in self.joined]

    def signals(self) -> dict[str, Signal]:
        """The process with the longest time outside communication, and this time over the median of
        the other processes.

        Empty until every process has made some steps.
        """
        timed = bool(self.exchanges) and all(self.exchanges.values())
        busy = self._busy_by_exchanges() if timed else self._busy_by_breakdown()
        if len(busy) < max(2, len(self._joined)):
            return {}
        busiest = max(busy, key=lambda rank: busy[rank])
        others = statistics.median(seconds for rank, seconds in busy.items() if rank != busiest)
        how = (
            "mean step less the median wait for exchanges (DistributedDataParallel's own timer)"
            if timed
            else "median time without communication and run-queue delay"
        )
        source = (
            f"step breakdown of {len(busy)} processes: {how}, over the median of the other"
            " processes"
        )
        return self._least_communication() | {
            "ranks.busy_ratio": Signal(busy[busiest] / max(1e-9, others), "x", source),
            "ranks.busiest": Signal(float(busiest), "", "step breakdown"),
            "world_size": Signal(float(len(busy)), "", "processes that have joined"),
        }

    def _busy_by_breakdown(self) -> dict[int, float]:
        """Seconds of a step without communication and run-queue delay, by rank. Empty where no
        phase shows communication: with sharding or split matrices, processes wait inside their
        passes, so their times cannot be compared."""
        sampled = {rank: steps for rank in self._joined if (steps := self._sampled(rank))}
        if not any(step.phases[COMM] for steps in sampled.values() for step in steps):
            return {}
        return {
            rank: statistics.median(_busy_s(step) for step in steps)
            for rank, steps in sampled.items()
        }

    def _busy_by_exchanges(self) -> dict[int, float]:
        """Seconds of a step in which a process waits for no other, by rank: the mean step, less its
        waits in the exchanges that all have timed and in the collectives that the program calls."""
        processes = [self.exchanges[rank] for rank in self._joined]
        recent = [
            step.wall_s
            for steps in self._steps.values()
            for step in itertools.islice(reversed(steps), RECENT_STEPS)
        ]
        if min(len(steps) for steps in self._steps.values()) < MIN_STEPS:
            return {}
        step_s = statistics.fmean(recent)  # of all processes: their steps are equally long
        return {
            rank: step_s - exposed_s - process.collectives_s()
            for rank, process, exposed_s in zip(
                self._joined, processes, exposed_of_each(processes), strict=False
            )
        }

    def _least_communication(self) -> dict[str, Signal]:
        """Communication time without waiting. In each step, the process that communicates least has
        arrived last, so it waited for no other process. Where DistributedDataParallel times the
        exchanges, this holds for each exchange that all processes have timed; the other collectives
        count as the process with the least of them does."""
        recent = [
            {
                step.index: step
                for step in itertools.islice(reversed(self._steps[rank]), RECENT_STEPS)
            }
            for rank in self._joined
        ]
        common = set.intersection(*(set(steps) for steps in recent))
        if len(common) < MIN_STEPS:
            return {}
        wall = sum(statistics.fmean(steps[index].wall_s for steps in recent) for index in common)
        source = (
            f"step breakdown of {len(recent)} processes, n={len(common)}: in each step, the process"
            " that communicated least"
        )
        timed = [self.exchanges[rank] for rank in self._joined]
        if all(timed):
            others = min(exchanges.collectives_s() for exchanges in timed) * len(common)
            least = others + least_exposed_s(timed) * len(common)
            source += (
                "; exchanges of gradients: in each one, the process that waited least"
                " (DistributedDataParallel's own timer)"
            )
        else:
            least = sum(min(steps[index].phases[COMM] for steps in recent) for index in common)
        outside = min(exchanges.outside_s() for exchanges in timed) * len(common)
        return {
            "ranks.least_comm_ratio": Signal(least / wall, "ratio", source),
            "comm.outside_ratio": Signal(
                min(outside, least) / wall,
                "ratio",
                (
                    "step breakdown: collectives that exchange no gradients, of the process that"
                    " spends the least time in them"
                ),
            ),
            "comm.outside_steps_ratio": Signal(
                min(exchanges.outside_steps() for exchanges in timed),
                "ratio",
                "steps with such a collective, over all steps",
            ),
            "comm.outside_calls_per_step": Signal(
                min(exchanges.outside_calls() for exchanges in timed),
                "",
                "calls of those collectives on the training thread",
            ),
        }

    def _sampled(self, rank: int) -> list[Step]:
        """The last steps for which run-queue delay was read, or the last ones where it is not read:
        on a GPU, where the times are those of the stream. Empty while there are fewer than
        MIN_STEPS."""
        steps = self._steps[rank]
        sampled = ([step for step in steps if step.runq is not None] or list(steps))[
            -SAMPLED_STEPS:
        ]
        return sampled if len(sampled) >= MIN_STEPS else []

    def _summary(self, event: RankJoined, limit: int | None) -> Rank:
        steps = list(itertools.islice(reversed(self._steps[event.rank]), limit))
        totals = self._totals[event.rank] if limit is None else Totals(steps)
        return Rank(
            rank=event.rank,
            host=event.host,
            pid=event.pid,
            steps=totals.steps,
            step_time_s=totals.step_time(steps),
            phases_ratio=totals.shares(),
            memory_peak_bytes=self._memory.get(event.rank),
            leads=event.leads,
        )


def _busy_s(step: Step) -> float:
    """Seconds of a step without communication and without run-queue delay. Communication includes
    the wait for other processes."""
    runq = step.runq or (0.0,) * len(PHASES)
    return step.wall_s - sum(runq) - (step.phases[COMM] - runq[COMM])


COUNTED_PRECISIONS = ("bf16", "fp16")
"""Precisions of a job that the agent may learn late, from the operators of a step."""
MAX_STEPS = 20_000
"""Steps kept of the current run, for percentiles. The sums are over all steady steps."""
LOSS_STEPS = 5
"""The first loss of a run is the mean over its first steps."""
LIVE_STEPS = 1500
"""Steps in a live summary. A summary over all 20 000 costs 28 ms, too much for every view."""
STEADY_EVERY_S = 0.5
WATCHED_STEPS = 4
"""Ticks of a server that is only watched before its figures count: 2 s of a page that is read
quickly, 16 s of one that is read seldom."""
LIVE_EVERY_S = 1.0
MAX_DELAY = 0.95
STEP_TIMES = 1000
"""Number of recent steps whose durations are in a view; in a serving run, of recent requests."""

TRACEBACK_LINES = 12
TRACEBACK_COLUMNS = 300
"""What is kept of a traceback: its last lines, each with so many characters. The message of an
error of torch may have hundreds of lines."""


class RunRecord:
    """Builds the stored part of a `Run` from its events.

    `run` holds the values from the events. Its summary, its ranks and its figures are empty:
    `figures.summary.summarized` computes them.
    """

    def __init__(self, opened: RunOpened, started: str) -> None:
        """`started`: the time of `opened` as UTC in ISO 8601."""
        self.opened = opened
        self.run = Run(
            id=opened.run,
            scenario=opened.scenario,
            workload=opened.workload,
            knobs=opened.knobs,
            device=opened.device,
            started=started,
            changes=opened.changes,
            elsewhere=opened.elsewhere,
            server_devices=list(opened.gpus),
            command_digest=opened.digest,
            command=opened.command,
        )
        self.closed_t: float | None = None
        self.first_step_t: float | None = None
        self.steady_t: float | None = None
        self.start_s: float | None = None
        """Seconds from the start of the worker to the end of its preparation; in a serving run,
        until the model server was ready."""
        self.knobs_in_force: Knobs = opened.knobs
        """The knobs that the worker last confirmed. During a trial these are the knobs of the
        running side."""
        self.changed_at = 0
        """The step before which all processes of a job made the last change; 0: not known."""
        self.notes: dict[str, str] = {}
        self.steps: deque[Step] = deque(maxlen=MAX_STEPS)
        self.seen_steps = 0
        self.memory_bytes: float | None = None
        self.overhead_s = 0.0
        self.overhead_start: tuple[float, int] | None = None
        """Measurement overhead in seconds, and number of steps, at the first message."""
        self.probe_signals: dict[str, Signal] = {}
        self.probes_s = 0.0
        """Seconds that probes have taken."""
        self.stacks = StackRecord()
        self.blocks = StepBlocks()
        """The steps of the whole run of a user's job: steps before the run is steady count too."""
        self.side_work = SideWork()
        """The side work and the sums of all steady steps, also of those that are no longer stored;
        of all steps, while no step is steady."""
        self.first_losses: list[float] = []
        """The losses of the first LOSS_STEPS steps; the first loss, where none of them has one."""
        self._delay_before: tuple[float, float] | None = None
        """Of the last message: its time, and the seconds so far in which the training thread waited
        for a core."""
        self.ranks = Ranks()
        self.serving = ServingRecord(self.run.watched) if self.run.serves else None
        self.compiled = CompileCounts()
        self.work = WorkCounts()
        self.energy = Energy()
        self._work = self._leaders_work = 0
        self.server_processes: list[int] = []
        """The processes of a watched server on this machine."""
        self.device_of: dict[int, str] = {}
        """The GPU of each process of the run, by process id, if the driver has listed the
        process."""
        self.others_ratio: float | None = None
        """Share of the console's cores that other programs keep busy; None if it is not known."""
        self.version = 0
        """Incremented with every event of the run. Results computed at the same version are
        equal."""
        self.live: tuple[ServingRecord, list[Step]] | None = None
        """Serving runs: the requests and ticks in the summary of a live view. They are copied once
        a second, because computing percentiles of thousands of gaps for every view is too slow."""
        self.live_version = 0
        """Incremented when a live summary may change."""
        self.archived: Run | None = None
        """The run with its last summary, after its steps were deleted."""
        self._evaluated_t = self._live_t = 0.0

    @property
    def facts(self) -> dict[str, float]:
        """The facts that the workload reported."""
        return self.run.facts

    def carry_on(self, before: RunRecord) -> None:
        """Begin the record of the next run after a kept change: the same worker continues with new
        knobs."""
        self.start_s = before.start_s
        self.run.facts, self.notes, self.run.server = before.facts, before.notes, before.run.server
        self.run.job, self.run.unavailable, self.run.effects = (
            before.run.job,
            dict(before.run.unavailable),
            before.run.effects,
        )
        self.run.traceback, self.run.varies = before.run.traceback, before.run.varies
        self.run.at_step = before.changed_at
        self.ranks.carry_on(before.ranks)
        self.device_of = dict(before.device_of)
        self.compiled.carry_on(before.compiled)
        self.run.state = "running"

    def apply(self, event: AnyEvent) -> None:
        """Apply an event of this run's worker, or the event that ends the run. Other events change
        nothing."""
        self.knobs_in_force = confirmed_knobs(event) or self.knobs_in_force
        match event:
            case Started():
                self._started(event)
            case KnobsSet() if not event.error:
                self.changed_at = event.at_step or event.step
                return
            case AgentOff() if event.where:
                self.run.unavailable[AGENT] = (
                    f"the agent has switched itself off at {event.where}: {event.cause}"
                )
                self.run.traceback = _last_lines(event.detail)
            case JobKnown():
                self.ranks.about[event.rank] = event.facts
                if self.ranks.leads(event.rank):
                    self.run.job = event.facts
            case OutOfMemory():
                self._memory_failed(event.failure)
            case MemoryLines() if event.held.failed or self.ranks.leads(event.rank):
                others = [
                    held
                    for held in self.run.memory_lines
                    if (held.rank, held.failed) != (event.rank, event.held.failed)
                ]
                self.run.memory_lines = [
                    *others,
                    msgspec.structs.replace(event.held, rank=event.rank),
                ]
            case MemoryOwners() if event.signals and self.ranks.leads(event.rank):
                self.probe_signals |= event.signals
            case Stacks():
                self.stacks.add(event)
            case RankJoined():
                self.ranks.join(event)
            case Steps():
                self._add_steps(event)
            case Requests() if self.serving is not None:
                self.serving.add_requests(event)
            case ServerKnown():
                self.run.server, self.server_processes = event.facts, event.processes
            case ServerState() if self.serving is not None:
                self.serving.add_state(event)
            case ProbeDone():
                self._probe_done(event)
            case Profiled():
                self._profiled(event)
            case Failed():
                self.run.error, self.run.traceback = event.cause, _last_lines(event.detail)
            case RunClosed():
                self._close(event)
            case Processes():
                self._list_processes(event.processes)
                return
            case _:
                return
        self.version += 1
        if self.serving is None or not isinstance(event, Steps | Requests | ServerState):
            self.live_version += 1

    def _started(self, event: Started) -> None:
        """Store facts about the workload. Facts of the other side of a trial do not belong to this
        run. A user's job first reports the knobs that the agent observed."""
        self.run.varies = sorted(
            name.removeprefix(VARIES) for name in event.notes if name.startswith(VARIES)
        )
        if (
            self.run.is_job and (not self.run.knobs or not self.steady_t)
        ) or self.run.watched:  # a watched server may restart with other limits
            self.run.knobs = event.knobs
        elif self.run.is_job and event.knobs.get("precision") in COUNTED_PRECISIONS:
            # the counted step may come after the first steady one; no change from here sets these
            self.run.knobs = {**self.run.knobs, "precision": event.knobs["precision"]}
        own = {
            name: event.knobs[name]
            for name in LIVE_KNOBS
            if self.run.knobs.get(name) == 0 and name in event.knobs
        }
        # a model server has chosen limits itself, and reports them
        if {**self.run.knobs, **own} == event.knobs:
            self.run.knobs = event.knobs
        if event.knobs == self.run.knobs:
            self.run.facts, self.notes = event.facts, event.notes
            others = {
                name: why
                for name, why in self.run.unavailable.items()
                if not name.startswith("knob.")
            }
            self.run.unavailable = others | {
                f"knob.{name.removeprefix(prefix)}": why
                for name, why in event.notes.items()
                for prefix in (NO_EFFECT, FIXED)
                if name.startswith(prefix)
            }
            self.run.effects = {
                name.removeprefix(EFFECT): effect
                for name, effect in event.notes.items()
                if name.startswith(EFFECT)
            }
        if self.run.state == "starting":
            self.start_s = event.t - self.opened.t
            self.run.state = "running"

    def _memory_failed(self, failure: MemoryFailure) -> None:
        """Keep a failed allocation; a later report of the same one replaces the earlier one."""
        others = [
            earlier
            for earlier in self.run.memory_failures
            if (earlier.t, earlier.rank) != (failure.t, failure.rank)
        ]
        self.run.memory_failures = sorted([*others, failure], key=lambda kept: kept.t)[
            -MAX_FAILURES:
        ]

    def _add_steps(self, event: Steps) -> None:
        """Add steps of any process. The steps of the leading process represent the run."""
        self.ranks.add(event)
        if event.collectives is not None:
            self.run.unavailable.pop(COLLECTIVES, None)
            if reason := self.ranks.why_not_compared(self.run.device):
                self.run.unavailable[COLLECTIVES] = reason
        if self.run.is_job:
            self._count_work(event)
        if not self.ranks.leads(event.rank):
            return
        counted = [step for step in event.steps if step.kind == COUNTS and step.arm == 0]
        self.seen_steps += len(event.steps)
        self.overhead_s = event.overhead_s
        self.compiled.add(event)
        self.work.add(event)
        if self.overhead_start is None:
            self.overhead_start = (event.overhead_s, self.seen_steps)
        self.memory_bytes = event.memory_bytes or None
        if counted and self.first_step_t is None:
            self.first_step_t = counted[0].t
        if self.serving is not None:
            passing = max(0, len(self.steps) + len(counted) - MAX_STEPS)
            passed = list(itertools.islice(self.steps, passing))
            self.serving.passed.add(self.serving.outages.answered(passed))
        self.steps.extend(counted)
        if self.serving is None:
            self._add_totals(counted)
        if self.run.is_job:
            self.blocks.add(counted, self._delay_ratio(event))
        self.run.duration_s = event.t - (
            self.first_step_t if self.first_step_t is not None else event.t
        )
        if not self.run.is_job:
            self.energy.add_tokens(sum(step.tokens for step in event.steps))
        if self.steady_t is None and event.t - self._evaluated_t >= STEADY_EVERY_S:
            self._evaluated_t = event.t
            self._detect_steady()
        if self.serving is not None and (
            self.live is None or event.t - self._live_t >= LIVE_EVERY_S
        ):
            self._live_t = event.t
            self.live = self.serving.copied(), self.summary_steps(LIVE_STEPS)
            self.live_version += 1

    def _add_totals(self, counted: Sequence[Step]) -> None:
        """Add steps, of which `steps` has the last ones already."""
        self.side_work.add(counted)
        if len(self.steps) - len(counted) < LOSS_STEPS:
            first = itertools.islice(self.steps, LOSS_STEPS)
            self.first_losses = [step.loss for step in first if step.loss is not None]
        if not self.first_losses:
            self.first_losses = [step.loss for step in counted if step.loss is not None][:1]

    def _count_work(self, event: Steps) -> None:
        """Count the work of a process of a user's job. Each process of such a job reports its own
        work; each process of a built-in run reports the work of all processes."""
        work = sum(step.tokens or step.samples for step in event.steps)
        self._work += work
        self._leaders_work += work if self.ranks.leads(event.rank) else 0
        self.energy.add_tokens(sum(step.tokens for step in event.steps))

    @property
    def whole_ratio(self) -> float:
        """The work of all processes divided by the work of the leading process, whose steps
        represent the run. If processes share a batch (tensor parallelism), each of them counts this
        batch."""
        return max(1.0, self._work / self._leaders_work) if self._leaders_work else 1.0

    def _delay_ratio(self, event: Steps) -> float:
        """The share of the time since the last message in which the training thread waited for a
        core. On a GPU it is hidden, and counts as 0."""
        before, self._delay_before = self._delay_before, (event.t, event.runq_s)
        if before is None or self.run.device != "cpu" or event.t <= before[0]:
            return 0.0
        return min(MAX_DELAY, max(0.0, (event.runq_s - before[1]) / (event.t - before[0])))

    def tried(self, begun: float, ended: float) -> None:
        """Record the end of a trial. The model server's reports during the trial belong to both
        sides."""
        self.version += 1
        self.live_version += 1
        if self.serving is not None:
            self.serving.probed(begun, ended)

    def _probe_done(self, event: ProbeDone) -> None:
        self.probe_signals |= event.signals
        self.probes_s += event.cost_s
        # a probe that was refused has taken no time, and has changed no count
        if event.error is None or event.cost_s:
            self.work.probed()
            self.compiled.probed()
            if self.serving is not None:
                self.serving.probed(event.t - event.cost_s, event.t)
        if event.error:
            self.run.unavailable[f"probe.{event.probe}"] = event.error
        else:
            self.run.unavailable.pop(f"probe.{event.probe}", None)

    def _profiled(self, event: Profiled) -> None:
        """Store a profile, and the signals that rules read of it. The last window replaces earlier
        windows. The reason for a missing window is kept only while there is no window."""
        if event.report is not None:
            self.run.profile = event.report
            # rules are about the leading process
            if event.report.rank is None or self.ranks.leads(event.report.rank):
                self.probe_signals |= window_signals(event.report)
            self.run.unavailable.pop("profile", None)
            for probe in (OP_MIX, SYNC_GAPS) if event.report.stalls is not None else (OP_MIX,):
                self.run.unavailable.pop(f"probe.{probe}", None)
        elif self.run.profile is None and event.error:
            self.run.unavailable["profile"] = event.error

    def add_energy(self, device: str, uuid: str, joules: float) -> None:
        """Add a reading of a device's energy counter while the run is steady."""
        if self.steady_t is not None and self.closed_t is None:
            self.energy.add(device, uuid, joules)

    def _list_processes(self, processes: list[Process]) -> None:
        """Record the GPUs of the run's processes. The run of a watched server is on the first of
        them."""
        if self.run.watched and self.closed_t is None and not self.run.server_devices:
            of_server = {
                process.device
                for process in processes
                if process.pid in self.server_processes and process.device
            }
            if of_server:
                self.run.server_devices = sorted(of_server)
                self.run.device = self.run.server_devices[0]
        if self.closed_t is None and self.ranks.joined:
            pids = {joined.pid for joined in self.ranks.joined}
            self.device_of |= {
                process.pid: process.device
                for process in processes
                if process.pid in pids and process.device
            }

    def _close(self, event: RunClosed) -> None:
        if self.closed_t is not None:
            return
        self.closed_t = event.t
        self.run.state = event.state
        if event.error:
            self.run.error = event.error

    def archive(self, summarized: Run) -> None:
        """Replace the steps and requests of a closed run by its summary, because they take several
        megabytes."""
        self.archived = summarized
        self.steps.clear()
        self.ranks.clear()
        self.work, self.stacks, self.blocks, self.side_work = (
            WorkCounts(),
            StackRecord(),
            StepBlocks(),
            SideWork(),
        )
        if self.serving is not None:
            self.serving, self.live = ServingRecord(self.run.watched), None

    def durations(self) -> list[float]:
        """Seconds of the recent steady steps, oldest first; in a serving run, E2E seconds of the
        recent requests."""
        if self.serving is not None:
            recent = itertools.islice(reversed(self.serving.requests), STEP_TIMES)
            return [request.e2e_s for request in recent if request.e2e_s is not None][::-1]
        return [step.wall_s for step in self.steady_steps(STEP_TIMES)]

    def steady_steps(self, limit: int | None = None, since_s: float | None = None) -> list[Step]:
        """Steady steps, oldest first: the last `limit` of them, of the last `since_s` seconds.
        Empty for an archived run. In a serving run: without the ticks in which the server did not
        answer."""
        if self.steady_t is None or not self.steps:
            return []
        start = self.steady_t if since_s is None else max(self.steady_t, self.steps[-1].t - since_s)
        steps = list(
            itertools.takewhile(
                lambda step: step.t >= start, itertools.islice(reversed(self.steps), limit)
            )
        )
        steps.reverse()
        return steps if self.serving is None else self.serving.outages.answered(steps)

    def summary_steps(self, limit: int | None) -> list[Step]:
        """The steps of a summary: the last `limit` steady steps (None: all), or the last steps
        while no step is steady."""
        steady = self.steady_steps(limit)
        if steady or self.steady_t is not None:
            return steady
        last = list(self.steps)[-(limit or MAX_STEPS) :]
        return last if self.serving is None else self.serving.outages.answered(last)

    def _detect_steady(self) -> None:
        steps = list(self.steps)
        if self.serving is not None and self.serving.watched:
            # the length of a tick is our own reading interval, so it needs no warm-up
            start = 0 if len(steps) >= WATCHED_STEPS else None
        else:
            start = steady_from(steps)
        if start is not None:
            self.steady_t = steps[start].t
            self.ranks.begin_steady(self.steady_t)
            if self.serving is None:
                self.side_work = SideWork(self.steady_steps())
            else:
                self.serving.passed = Totals()
            self.run.steady_from_s = steps[start].t - (self.first_step_t or steps[start].t)


def _last_lines(detail: str) -> list[str]:
    """The last lines of a traceback that are not empty."""
    return [row[:TRACEBACK_COLUMNS] for row in detail.splitlines() if row.strip()][
        -TRACEBACK_LINES:
    ]
