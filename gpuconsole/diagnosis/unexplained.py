"""Time that no finding explains. A run may be called "without a fault" only when this time is small, and when no rule that could explain a large
part of a step is without a conclusion.

All figures come from the signals and findings that a run keeps, so a snapshot has the same answer as the run had.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuconsole.diagnosis.claims import IDLE, PASSES, is_about, left, rules_about
from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.probes import IN_JOB, NO_CONSENT, PROBE_OF
from gpuconsole.diagnosis.rule import CantTell, Case, Threshold, percent
from gpuconsole.model.finding import Finding
from gpuconsole.model.run import Run

LARGE = Threshold("unexplained", 0.10, "ratio", "a tenth of a step: from this share on the rules about input and exchanges name a cause")

_OF_STEP, _OF_REQUEST = "of each step", "of the time of a request"


class Unexplained(NamedTuple):
    """Time that no finding explains. `share`: of a step or of a request. `time`: one clause that says what it goes to. `fits`: possible causes.
    `missing`: the signals that the rules about this time lack. `remedy`: how to get them, one clause. `named`: findings name a cause in
    this part, and would not free all of it."""

    share: float
    time: str
    fits: str
    missing: tuple[str, ...]
    remedy: str
    named: bool = False

    @property
    def words(self) -> str:
        """The clause for a run whose diagnosis is final."""
        return f"{self.time} beyond what the findings would free" if self.named else f"{self.time}, and no rule names the cause"


UNMEASURED = "forward_ratio"
"""The signal that rules lack where the time of a step is not divided yet."""
RULES_OF_PASSES = ("gpu.", "host.launch_bound", "host.sync_stall", "host.recompile_graphbreak", "host.idle_cores")


def unexplained(run: Run) -> Unexplained | None:
    """Return the largest part of a step (of a server: of a request) that the findings leave, where a tenth or more is left."""
    case = Case.of(run, run.signals)
    part, whole, rest = max(left(run.findings, case), key=lambda entry: entry[2], default=(None, 0.0, 0.0))
    if part is None or rest < LARGE:
        return None
    unsure = _without_conclusion(run, rules_about(part.name))
    missing = _missing(unsure) if not run.watched else ()
    fits = part.fits + (f" (most of them in {place})" if part.name == IDLE and (place := _waiting_place(case)) else "")
    time = f"{percent(rest)} {_OF_REQUEST if run.serves else _OF_STEP} {part.words}"
    named = rest < whole or any(is_about(finding, part.name, case) for finding in run.findings)
    how = "; ".join(dict.fromkeys(finding.summary for finding in unsure)) if run.watched else remedy(run, missing)
    return Unexplained(rest, time, fits, missing, how, named)


def _waiting_place(case: Case) -> str:
    """Where the host waits for the GPU; empty where it waits little, or the place is not known."""
    try:
        return device.waiting_place(case) if device.waited_ratio(case) >= device.WAITED else ""
    except CantTell:
        return ""


def open_question(run: Run) -> str:
    """Why a run in which nothing is unexplained may still have a fault: rules about a large part of it have no conclusion. One clause; empty where
    there are no such rules."""
    if any(UNMEASURED in finding.missing for finding in run.findings):
        return "the shares of a step are not measured yet"
    if run.serves:
        rules, about = _without_conclusion(run, ("watch." if run.watched else "serve.",)), "the server"
    else:
        case = Case.of(run, run.signals)
        share = sum(case.get(f"{phase}_ratio", 0.0) for phase in PASSES)
        rules = _without_conclusion(run, RULES_OF_PASSES) if share >= LARGE else []
        about = f"the passes and the optimizer ({percent(share)} {_OF_STEP})"
    if not rules:
        return ""
    if run.watched:
        return f"{rules[0].summary}" + (
            f"; {len(rules) - 1} other {'rule lacks' if len(rules) == 2 else 'rules lack'} data too" if rules[1:] else ""
        )
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


def _without_conclusion(run: Run, rules: tuple[str, ...]) -> list[Finding]:
    return [finding for finding in _about(run, rules) if finding.state == "cant_tell"]


def _about(run: Run, rules: tuple[str, ...]) -> list[Finding]:
    return [finding for finding in run.findings if finding.rule.startswith(rules)]


def _missing(findings: list[Finding]) -> tuple[str, ...]:
    """The signals that these rules lack, each once."""
    return tuple(dict.fromkeys(signal for finding in findings for signal in finding.missing))
