"""Shared by the rules about the host: whether threads of the job find a core, and side work
(logging, checkpoints, evaluation)."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from gpuconsole.diagnosis.rule import Case, Finding, Interval, Rule, Suggestion, Threshold, high_if
from gpuconsole.model.units import NA

# --- cores ----------------------------------------------------------------------------------------

DELAY = Threshold(
    "run_queue",
    0.15,
    "ratio",
    "15 % of step time on the run queue; below that the other rules need no correction",
)


def waits_for_core(case: Case) -> bool:
    """Whether the training thread spends too much time on the run queue."""
    return case.get("runq_ratio", 0.0) >= DELAY


def threads_wait_for_each_other(case: Case) -> bool:
    """Whether threads of the job wait for a core, and the job has more threads than there are cores
    without other programs.

    The fixed cost of a step is then the time that threads wait for each other. If others use half a
    core or more, it counts as a whole core. On a GPU one thread issues the work, and waits for no
    other thread.
    """
    if case.get("is_gpu", 0.0):
        return False
    left = case.get("cores", math.inf)
    if case.has("host.others_cpu_ratio", "cores"):
        left -= round(case.value("host.others_cpu_ratio") * left)
    return (
        waits_for_core(case)
        and case.get("threads", 0.0) * max(1.0, case.get("host.processes", 1.0)) > left
    )


# --- modes for debugging --------------------------------------------------------------------------

ON = Threshold(
    "on",
    0.5,
    "ratio",
    (
        "a profiler with a schedule records some steps only; a mode that was left on is on in each"
        " step"
    ),
)


def in_anomaly_mode(case: Case) -> bool:
    """Whether anomaly mode is on in most steps. Each operator of a forward pass takes longer then,
    and so does each gradient."""
    return case.get("mode.anomaly_ratio", 0.0) >= ON


def is_profiled(case: Case) -> bool:
    """Whether a profiler of the program records most steps. Each operator takes longer then, also
    in the optimizer."""
    return case.get("mode.profiler_ratio", 0.0) >= ON


def is_debugged(case: Case) -> bool:
    """Whether a mode for debugging is on in most steps. The times of passes are then not those of
    the program alone."""
    return in_anomaly_mode(case) or is_profiled(case)


def launches_wait(case: Case) -> bool:
    """Whether CUDA_LAUNCH_BLOCKING makes the host wait for each kernel: how far the host runs
    ahead, and its waits, say nothing then."""
    return case.get("environment.CUDA_LAUNCH_BLOCKING", 0.0) >= ON


# --- the interpreter's lock -----------------------------------------------------------------------

OTHER_THREAD = Threshold(
    "other_thread",
    0.3,
    "ratio",
    "a thread that reports, or moves batches, is in Python in a few percent of the time",
)
IDLE = Threshold(
    "idle", 0.15, "ratio", "as the run-queue delay: below, the other rules need no correction"
)
CAUGHT_UP = Threshold(
    "caught_up",
    0.5,
    "ratio",
    "where the GPU still has work at the end of most steps, the time of the host costs nothing",
)
SLEEPS, SLEEPS_BESIDE = ("data_wait", "comm"), ("logging", "checkpoint")
"""The phases in which the training thread sleeps for another reason, and those of them that are
side work."""


def idle_ratio(case: Case) -> float:
    """The share of time in which the training thread neither runs nor waits for a core, without
    phases in which it sleeps for another reason. Raises Missing."""
    asleep = sum(case.get(f"{phase}_ratio", 0.0) for phase in SLEEPS) + sum(
        case.recent(phase, 0.0) for phase in SLEEPS_BESIDE
    )
    return case.value("host.training_idle_ratio") - asleep


def waits_for_lock(case: Case) -> bool:
    """Whether another thread of the program keeps the training thread waiting for the interpreter's
    lock, as far as it is known."""
    if not case.has("stack.thread_ratio", "host.training_idle_ratio") or (
        case.on_gpu and case.get("host.caught_up_ratio", 0.0) < CAUGHT_UP
    ):
        return False
    return case.value("stack.thread_ratio") >= OTHER_THREAD and idle_ratio(case) >= IDLE


# --- side work: a share of step time that shrinks if the work runs less often ---------------------

SIDE_WORK = Threshold(
    "share", 0.05, "ratio", "5 % of step time (train-doctor 2 %, gpu-idle and TraceML 5 %)"
)
EVALUATION = Threshold(
    "share",
    0.10,
    "ratio",
    "10 % of step time: evaluation is useful work, so it may cost more than logging",
)
SCRIPT = Threshold(
    "share",
    0.10,
    "ratio",
    (
        "10 % of step time outside all named phases; without a DataLoader also the time in which"
        " batches are made"
    ),
)
TIMES_RARER = 20


class SideWorkRule(Rule):
    """A rule about one kind of side work. `phase` of the step breakdown, `every`: the knob that
    says how often it runs; the first threshold is that of the share."""

    phase: ClassVar[str]
    every: ClassVar[str]

    @abstractmethod
    def summary(self, case: Case, share: float, every: int | None) -> str:
        """What takes `share` of step time. `every`: steps between two runs of the work; None where
        they are not known."""

    @abstractmethod
    def rarer(self, case: Case, every: int, predicted: Interval) -> Suggestion | None:
        """`every`: steps between two runs of the work, 20 times as many as now. `predicted`: the
        speed-up from that change."""

    def otherwise(self, case: Case) -> Suggestion | None:
        """Return a change that makes the work itself shorter."""
        return None

    def judge(self, case: Case) -> Finding:
        limit = self.thresholds[0]
        signal = f"{self.phase}_ratio"
        share = case.value(signal)
        if share < limit:
            return self.clear(share / limit, case.evidence((signal, limit)))
        case.value("probe.step_no_side_work_s")  # probe P3 comes before any claim
        every = max(1, int(case.knobs[self.every])) if self.every in case.knobs else None
        evidence = case.evidence((signal, limit), "probe.step_no_side_work_s", mean_step(case))
        rarer = (
            self.rarer(case, every * TIMES_RARER, rarer_speedup(case, share, self.phase))
            if every is not None
            else None
        )
        summary, recoverable = self.summary(case, share, every), share * (1 - 1 / TIMES_RARER)
        if case.has(place := f"stack.{self.phase}_ratio"):
            evidence += case.evidence(place)
            summary += (
                ", most of that time at "
                f"{case.signal(place).source.rpartition(' most of them at ')[2]}"
            )
        return self.fires(
            share / limit,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=high_if(every is not None),
            suggestions=[rarer, self.otherwise(case)],
        )


def mean_step(case: Case) -> str:
    """Return the name of the signal with the mean step, of which the shares of side work are. A
    snapshot of an earlier version has the step of the last seconds only."""
    return name if case.has(name := "step_with_side_work_s") else "step_s"


def every_steps(every: int | None) -> str:
    """Return the steps between two runs of the work, for the summary of a finding."""
    return NA if every is None else str(every)


def rarer_speedup(case: Case, share: float, phase: str) -> Interval:
    """Speed-up if the work runs 20 times less often: 1 / (1 - s (1 - 1/20)), from the share in the
    account to the share that P3 measured. A thread that writes what the step hands over shares the
    interpreter with the rest of the step, which then becomes shorter too: the upper end counts
    that."""
    removed = share * (1 - 1 / TIMES_RARER)
    estimates = [1 / (1 - removed)]
    all_side_work = sum(
        case.get(f"{phase}_ratio", 0.0) for phase in ("logging", "checkpoint", "eval")
    )
    if case.has("probe.step_no_side_work_s") and all_side_work > 0:
        by_probe = 1 - case.value("probe.step_no_side_work_s") / case.value(mean_step(case))
        estimates.append(
            1 / (1 - min(0.95, max(0.0, by_probe) * share / all_side_work * (1 - 1 / TIMES_RARER)))
        )
    if at_line := at_line_of(case, phase):
        estimates.append(1 / (1 - min(0.95, removed + at_line * (1 - 1 / TIMES_RARER))))
    if writes := case.get("stack.thread_ratio", 0.0):
        estimates.append(max(estimates) / (1 - min(MAX_SHARED_SHARE, writes)))
    low, high = min(estimates), max(estimates)
    return Interval(1 + (low - 1) * 0.85, 1 + (high - 1) * 1.15)


def line_of(case: Case, signal: str) -> str:
    """The `file:line` that stack samples name for a signal; empty where there is none."""
    if not case.has(signal):
        return ""
    place: str = case.signal(signal).source.rpartition(" at ")[2]
    return place.partition(" ")[0]


def at_line_of(case: Case, phase: str) -> float:
    """The share of a step that the script's own Python takes at the line of this side work, such as
    making the values that a log record has. Rarer side work makes that rarer too."""
    script, side_work = line_of(case, "stack.line_ratio"), line_of(case, f"stack.{phase}_ratio")
    return case.value("stack.line_ratio") if script and script == side_work else 0.0


MAX_SHARED_SHARE = 0.5
"""Two threads in Python have the interpreter half of the time each."""
