"""Shared by the rules about the host: whether threads of the job find a core, modes for debugging,
the interpreter's lock, and side work (logging, checkpoints, evaluation)."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.rule import (
    CantTell,
    Case,
    Finding,
    Interval,
    Rule,
    Suggestion,
    Threshold,
    high_if,
)
from gpuconsole.model.units import NA

# --- cores ----------------------------------------------------------------------------------------

DELAY = Threshold(
    "run_queue",
    0.15,
    "ratio",
    "15 % of step time on the run queue; below that the other rules need no correction",
)


def waits_for_core(case: Case) -> bool:
    """Return whether the training thread spends too much time on the run queue."""
    return case.get("runq_ratio", 0.0) >= DELAY


def threads_wait_for_each_other(case: Case) -> bool:
    """Return whether threads of the job wait for a core, and the job has more threads than the
    number of cores that other programs leave.

    The fixed cost of a step is then the time that threads wait for each other. The cores that other
    programs use are rounded to a whole number. On a GPU one thread issues the work, and waits for
    no other thread.
    """
    if case.get("is_gpu", 0.0):
        return False
    cores_left = case.get("cores", math.inf)
    if case.has("host.others_cpu_ratio", "cores"):
        cores_left -= round(case.value("host.others_cpu_ratio") * cores_left)
    return (
        waits_for_core(case)
        and case.get("threads", 0.0) * max(1.0, case.get("host.processes", 1.0)) > cores_left
    )


# --- modes for debugging --------------------------------------------------------------------------

ON = Threshold(
    "on",
    0.5,
    "ratio",
    (
        "a profiler with a schedule records some steps only;"
        " a mode that was left on is on in each step"
    ),
)


def in_anomaly_mode(case: Case) -> bool:
    """Return whether anomaly mode is on in most steps. Each operator of a forward pass takes longer
    then, and so does each gradient."""
    return case.get("mode.anomaly_ratio", 0.0) >= ON


def is_profiled(case: Case) -> bool:
    """Return whether a profiler of the program records most steps. Each operator takes longer then,
    also in the optimizer."""
    return case.get("mode.profiler_ratio", 0.0) >= ON


def is_debugged(case: Case) -> bool:
    """Return whether a mode for debugging is on in most steps. The times of the passes then include
    the cost of that mode."""
    return in_anomaly_mode(case) or is_profiled(case)


def launches_wait(case: Case) -> bool:
    """Return whether CUDA_LAUNCH_BLOCKING makes the host wait for each kernel. How far the host
    runs ahead, and how long it waits, then say nothing about the program."""
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
SLEEPS, SLEEPS_BESIDE = ("data_wait", "comm"), ("logging", "checkpoint")
"""The phases in which the training thread sleeps for another reason than the interpreter's lock:
first the phases of the step itself, then the phases of side work."""


def idle_ratio(case: Case) -> float:
    """Return the share of time in which the training thread neither runs nor waits for a core,
    without the phases in SLEEPS and SLEEPS_BESIDE. Raise Missing if the share was not measured."""
    asleep = sum(case.get(f"{phase}_ratio", 0.0) for phase in SLEEPS) + sum(
        case.recent(phase, 0.0) for phase in SLEEPS_BESIDE
    )
    return case.value("host.training_idle_ratio") - asleep


def waits_for_lock(case: Case) -> bool:
    """Return whether another thread of the program keeps the training thread waiting for the
    interpreter's lock; False where the signals were not measured."""
    if not case.has("stack.thread_ratio", "host.training_idle_ratio"):
        return False
    if case.value("stack.thread_ratio") < OTHER_THREAD or not device.knows_idle(case):
        return False
    return idle_ratio(case) >= IDLE and device.idle(case).most >= IDLE


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
        "10 % of step time outside all named phases;"
        " without a DataLoader also the time in which batches are made"
    ),
)
TIMES_RARER = 20
"""A suggestion makes side work this many times less frequent."""
MAX_SHARED_SHARE = 0.5
"""Two threads in Python have the interpreter half of the time each."""


class SideWorkRule(Rule):
    """A rule about one kind of side work. `phase`: its phase in the step breakdown. `every`: the
    knob for the steps between two runs. The first threshold is the limit of its share. `beside`:
    the host does this work in most steps, so it costs nothing while the GPU has work."""

    phase: ClassVar[str]
    every: ClassVar[str]
    beside: ClassVar[bool] = False

    @abstractmethod
    def summary(self, case: Case, share: float, every: int | None) -> str:
        """Return a sentence about the work that takes `share` of step time. `every`: steps between
        two runs of the work; None where the number is not known."""

    @abstractmethod
    def rarer(self, case: Case, every: int, predicted: Interval) -> Suggestion | None:
        """Return a change that runs the work less often. `every`: steps between two runs after the
        change, 20 times as many as now. `predicted`: the speed-up from the change."""

    def otherwise(self, case: Case) -> Suggestion | None:
        """Return a change that makes the work itself shorter."""
        return None

    def judge(self, case: Case) -> Finding:
        limit = self.thresholds[0]
        signal = f"{self.phase}_ratio"
        share = case.value(signal)
        if share < limit:
            return self.clear(share / limit, case.evidence((signal, limit)))
        if self.beside and device.works_in(case, share):
            evidence = case.evidence((signal, limit)) + device.idle_evidence(case)
            return self.clear(0.0, evidence, device.idle_words(case))
        case.value("probe.step_no_side_work_s")  # probe P3 comes before any claim
        every = max(1, int(case.knobs[self.every])) if self.every in case.knobs else None
        # the share depends on how often the work comes
        if every is None and case.is_job:
            raise CantTell("this work has happened once, so its frequency is not known")
        evidence = case.evidence((signal, limit), "probe.step_no_side_work_s", mean_step(case))
        rarer = (
            self.rarer(case, every * TIMES_RARER, rarer_speedup(case, share, self.phase))
            if every is not None
            else None
        )
        summary, recoverable = self.summary(case, share, every), share * (1 - 1 / TIMES_RARER)
        if case.has(place := f"stack.{self.phase}_ratio"):
            evidence += case.evidence(place)
            summary += most_at(case, place)
        return self.fires(
            share / limit,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=high_if(every is not None),
            suggestions=[rarer, self.otherwise(case)],
        )


def most_at(case: Case, signal: str) -> str:
    """Return the end of a sentence that names the line with most of a signal's time; empty if the
    line is not known."""
    place = case.place(signal)
    if place is None:
        return ""
    called = f", called by {place.caller}" if place.caller else ""
    return f", most of that time at {place}{called}"


def mean_step(case: Case) -> str:
    """Return the name of the signal with the mean step time; the shares of side work are shares of
    this time. A snapshot of an earlier version has only the step time of the last seconds."""
    return name if case.has(name := "step_with_side_work_s") else "step_s"


def every_steps(every: int | None) -> str:
    """Return the steps between two runs of the work, for the summary of a finding."""
    return NA if every is None else str(every)


def rarer_speedup(case: Case, share: float, phase: str) -> Interval:
    """Return the speed-up if the work runs 20 times less often: 1 / (1 - s (1 - 1/20)), where s is
    the share in the step breakdown, or the share that probe P3 measured. A thread that writes the
    data of a step shares the interpreter with the rest of the step, which also becomes shorter: the
    upper end of the interval counts that gain."""
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
    if share_at_line := at_line_of(case, phase):
        estimates.append(1 / (1 - min(0.95, removed + share_at_line * (1 - 1 / TIMES_RARER))))
    if thread_ratio := case.get("stack.thread_ratio", 0.0):
        estimates.append(max(estimates) / (1 - min(MAX_SHARED_SHARE, thread_ratio)))
    low, high = min(estimates), max(estimates)
    return Interval(1 + (low - 1) * 0.85, 1 + (high - 1) * 1.15)


def line_of(case: Case, signal: str) -> str:
    """Return the `file:line` that stack samples name for a signal; empty if they name no line."""
    place = case.place(signal)
    return place.line if place is not None else ""


def at_line_of(case: Case, phase: str) -> float:
    """Return the share of a step that the script's own Python takes at the line of this side work,
    for example to make the values of a log record. If the side work runs less often, so does this
    Python."""
    script, side_work = line_of(case, "stack.line_ratio"), line_of(case, f"stack.{phase}_ratio")
    return case.value("stack.line_ratio") if script and script == side_work else 0.0
