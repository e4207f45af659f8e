"""Time that no finding explains. A run may be called "without a fault" only when this time is small, and when no rule that could explain a large
part of a step is without a conclusion.

All figures come from the signals and findings that a run keeps, so a snapshot has the same answer as the run had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpuconsole.diagnosis.families import device, serving
from gpuconsole.diagnosis.precedence import COVERED
from gpuconsole.diagnosis.probes import IN_JOB, NO_CONSENT, PROBE_OF
from gpuconsole.diagnosis.rule import CantTell, Case, Threshold, percent
from gpuconsole.model.finding import Finding
from gpuconsole.model.run import Run

LARGE = Threshold("unexplained", 0.10, "ratio", "a tenth of a step: from this share on the rules about input and exchanges name a cause")

_OF_STEP, _OF_REQUEST = "of each step", "of the time of a request"


class Part(NamedTuple):
    """A part of the time of a step, or of a request, that is no useful work. `share` raises Missing where the part is not measured.

    `words`: what the time goes to, after its share. `rules`: the rules that can name the cause, by id or by the start of their ids. `fits`: causes
    that such time can have.
    """

    share: Callable[[Case], float]
    words: str
    rules: tuple[str, ...]
    fits: str


class Unexplained(NamedTuple):
    """Time that no finding explains. `share`: of a step or of a request. `time`: one clause that says what it goes to. `fits`: possible causes.
    `missing`: the signals that the rules about this time lack. `remedy`: how to get them, one clause."""

    share: float
    time: str
    fits: str
    missing: tuple[str, ...]
    remedy: str

    @property
    def words(self) -> str:
        """The clause for a run whose diagnosis is final."""
        return f"{self.time}, and no rule names the cause"


def _phase(name: str) -> Callable[[Case], float]:
    return lambda case: case.value(f"{name}_ratio")


def _without_work(case: Case) -> float:
    """The share of a step in which no kernel runs on the GPU, less the parts of the step that make no GPU work."""
    return 1 - case.value("gpu.util_ratio") - device.beside_passes(case) if case.on_gpu else 0.0


TRAINING = (
    Part(_phase("data_wait"), "waits for data", ("input.", "host.python_overhead"), "too few workers, slow storage, or costly transforms"),
    Part(_phase("h2d"), "copies batches to the GPU", ("h2d.", "link."), "copies from pageable memory, large batches, or a slow PCIe link"),
    Part(_phase("comm"), "waits for other processes", ("comm.",), "a slow link, a slow process, or exchanges that no computation hides"),
    Part(_phase("logging"), "goes to logging", ("host.logging_io",), "log records in each step, or a slow disk"),
    Part(_phase("checkpoint"), "goes to checkpoints", ("host.checkpoint_stall",), "checkpoints that are often or large, or a slow disk"),
    Part(_phase("eval"), "goes to evaluation", ("host.eval_stall",), "an evaluation that is often or long"),
    Part(_phase("other"), "is outside of all phases", ("host.python_overhead",), "Python code of the loop, or the garbage collector"),
    Part(_without_work, "passes without work on the GPU", ("host.", "gpu."), "slow launches of kernels, or waits for the GPU"),
)
SERVING = (
    Part(serving.queue_ratio, "is a wait in the queue", ("serve.",), "more load than the server can take, or limits that are too low"),
)
UNMEASURED = "forward_ratio"
"""The signal that rules lack where the time of a step is not divided yet."""
PASSES = ("generation", "forward", "loss", "backward", "optimizer")
RULES_OF_PASSES = ("gpu.", "host.launch_bound", "host.sync_stall", "host.recompile_graphbreak", "host.idle_cores")


def unexplained(run: Run) -> Unexplained | None:
    """The largest part of a step (of a server: of a request) that no finding explains, where it is a tenth or more."""
    case = Case.of(run, run.signals)
    shares = [(_share(part, case), part) for part in (SERVING if run.serves else TRAINING) if not _explained(part, run)]
    share, part = max(shares, key=lambda entry: entry[0], default=(0.0, None))
    if part is None or share < LARGE:
        return None
    missing = _missing(_without_conclusion(run, part.rules))
    time = f"{percent(share)} {_OF_REQUEST if run.serves else _OF_STEP} {part.words}"
    return Unexplained(share, time, part.fits, missing, remedy(run, missing))


def open_question(run: Run) -> str:
    """Why a run in which nothing is unexplained may still have a fault: rules about a large part of it have no conclusion. One clause; empty where
    there are no such rules."""
    if any(UNMEASURED in finding.missing for finding in run.findings):
        return "the shares of a step are not measured yet"
    if run.serves:
        rules, about = _without_conclusion(run, ("serve.",)), "the server"
    else:
        case = Case.of(run, run.signals)
        share = sum(case.get(f"{phase}_ratio", 0.0) for phase in PASSES)
        rules = _without_conclusion(run, RULES_OF_PASSES) if share >= LARGE else []
        about = f"the passes and the optimizer ({percent(share)} {_OF_STEP})"
    if not rules:
        return ""
    how = remedy(run, _missing(rules))
    return f"{len(rules)} {'rule has' if len(rules) == 1 else 'rules have'} no data about {about}{f': {how}' if how else ''}"


def remedy(run: Run, missing: tuple[str, ...]) -> str:
    """How to get signals that are missing, one clause; empty where nothing is missing, or nothing is known to help."""
    probes = list(dict.fromkeys(PROBE_OF[signal] for signal in missing if signal in PROBE_OF))
    waiting = [probe for probe in probes if probe in IN_JOB and run.unavailable.get(f"probe.{probe}") == NO_CONSENT]
    if waiting:
        key = "P (or --probe)" if run.state == "running" else "--probe"
        return f"{key} allows {'the probe' if len(waiting) == 1 else 'the probes'} {', '.join(waiting)}"
    reasons = [run.unavailable[f"probe.{probe}"] for probe in probes if f"probe.{probe}" in run.unavailable]
    refused = [reason for reason in reasons if reason != NO_CONSENT]  # consent would not help: these never run in a job
    if refused:
        return f"the measurement is not possible here: {refused[0]}"
    return "a longer run may give the numbers" if missing else ""


def _share(part: Part, case: Case) -> float:
    try:
        return part.share(case)
    except CantTell:
        return 0.0


def _explained(part: Part, run: Run) -> bool:
    """Whether a finding is about this part: one that fires, or one that yields to a finding that fires."""
    return any(finding.state == "fires" or finding.title.startswith(COVERED) for finding in _about(run, part.rules))


def _without_conclusion(run: Run, rules: tuple[str, ...]) -> list[Finding]:
    return [finding for finding in _about(run, rules) if finding.state == "cant_tell"]


def _about(run: Run, rules: tuple[str, ...]) -> list[Finding]:
    return [finding for finding in run.findings if finding.rule.startswith(rules)]


def _missing(findings: list[Finding]) -> tuple[str, ...]:
    """The signals that these rules lack, each once."""
    return tuple(dict.fromkeys(signal for finding in findings for signal in finding.missing))
