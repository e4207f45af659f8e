"""Runs every rule on a case, and smooths the conclusions over time. Decides whether the diagnosis
of a run is final.

This module reads no clock: the caller passes the time.
"""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections.abc import Collection, Iterable
from functools import cache

from gpuconsole.diagnosis import rules as rules_package
from gpuconsole.diagnosis.claims import (
    of_whole_step,
    open_question,
    share_out,
    unexplained,
    unjudged,
)
from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.precedence import rank, settle
from gpuconsole.diagnosis.probes import ADDS_WORDS, IN_JOB, NO_CONSENT, ORDER, PROBE_OF
from gpuconsole.diagnosis.rule import CantTell, Case, Missing, Rule
from gpuconsole.model.finding import Finding
from gpuconsole.model.run import Run

# --- decides whether the diagnosis of a run is final or may still change --------------------------

SETTLED_S = 1.0
"""A diagnosis is final if it has not changed for this time and no probe is running or expected."""
DOUBT_S = 25.0
"""After this time in steady state without a running probe, the diagnosis is final even if rules
still lack a signal."""
NOT_STEADY_S = 60.0
"""If a run without a running probe is not steady after this time, waiting ends."""
SERVING_S = 10.0
"""The queue and the cache of a model server take some seconds to fill. The first seconds are not
typical."""


class DiagnosisStatus:
    """Whether a diagnosis is final. Call `evaluate` several times a second; it returns True if the
    diagnosis is final or waiting longer is useless."""

    def __init__(self, started_s: float, tunable: Collection[str] = ()) -> None:
        """`started_s`: the time now. `tunable`: only findings that can change one of these knobs
        count; (): all findings."""
        self._tunable = tunable
        self._running_s = self._idle_s = self._same_since_s = started_s
        self._firing: list[str] = []

    def evaluate(self, run: Run, probing: bool, now_s: float) -> bool:
        """`probing`: a probe is running. `now_s`: monotonic seconds, on the clock of
        `started_s`."""
        steady = run.steady_from_s is not None
        # findings before this are not based on steady steps
        judged = steady and (run.serves or "step_s" in run.signals)
        firing = [
            finding.rule
            for finding in about(run.findings, self._tunable)
            if finding.state == "fires"
        ]
        quiet = bool(self._tunable) or not probing
        if not judged or firing != self._firing or not quiet or in_doubt(run, self._tunable):
            self._same_since_s = now_s
        self._firing = firing
        if run.state == "starting":
            self._running_s = now_s
        # a compiled run needs long to become steady, and some probes cause another compilation
        if not steady or probing:
            self._idle_s = now_s
        settled = now_s - self._same_since_s >= SETTLED_S or now_s - self._idle_s > DOUBT_S
        filled = not run.serves or run.duration_s - (run.steady_from_s or 0.0) >= SERVING_S
        given_up = now_s - (self._idle_s if steady else self._running_s) > NOT_STEADY_S
        return run.state != "starting" and (
            (judged and bool(run.findings) and settled and filled) or given_up
        )


def why_no_claim(run: Run) -> str:
    """The reason why a run in which no rule names a fault cannot be called without a fault; empty
    if it can. One clause for the user."""
    if run.client:
        return f"{run.client} measured this run from outside: its file has no signals of the server"
    measured = any(name.startswith("server.") for name in run.signals)
    if run.watched and run.validity is not None and not measured:
        return serving.TOO_FEW_READINGS
    if run.steady_from_s is None and not run.summary.steps:
        return (
            run.error if run.is_job and run.state == "finished" else None
        ) or "nothing was measured"
    if run.is_job and run.state not in ("starting", "running") and run.steady_from_s is None:
        return (
            f"the job ended before its step time was steady, after {run.summary.steps}"
            f" step{'' if run.summary.steps == 1 else 's'}"
        )
    if run.validity is not None and run.validity.verdict != "valid":
        return f"the numbers are {run.validity.verdict}: {run.validity.reasons[0]}"
    one, gap = unjudged(run), unexplained(run)
    return "; ".join(
        filter(
            None,
            (
                one.words if one is not None else "",
                gap.words if gap is not None else ": ".join(filter(None, open_question(run))),
            ),
        )
    )


def still_open(run: Run) -> str:
    """Return the open question beside notes: `why_no_claim` of a run in which no rule names a
    cause. A note, for example about a busy machine, explains no time. Return an empty string if a
    finding names a cause, or if a note says that the time is well spent."""
    firing = [finding for finding in run.findings if finding.state == "fires"]
    if not run.findings or any(not finding.note or finding.is_healthy for finding in firing):
        return ""
    return why_no_claim(run)


def in_doubt(run: Run, tunable: Collection[str] = ()) -> bool:
    """Whether a rule waits for a probe that has not failed, or for its second evaluation.
    `tunable`: see DiagnosisStatus."""
    findings = about(run.findings, tunable)
    probes = {
        PROBE_OF[signal] for finding in findings for signal in finding.missing if signal in PROBE_OF
    } - ADDS_WORDS
    waiting = any(f"probe.{probe}" not in run.unavailable for probe in probes)
    return waiting or any(finding.summary == SEEN_ONCE for finding in findings)


def still_measuring(run: Run) -> bool:
    """Whether a rule of a steady run may get its data soon: its probe or its second evaluation is
    due."""
    young = run.steady_from_s is not None and run.duration_s - run.steady_from_s < DOUBT_S
    return run.state == "running" and young and in_doubt(run)


# --- runs every rule on a case, and smooths the conclusions over time -----------------------------

OPEN_AFTER = 2
"""Evaluations in a row that must agree before a finding is shown."""
SEEN_ONCE = "fires for the first time; the next evaluation must confirm it"
"""The summary of a finding that is not shown yet."""
CLOSE_BELOW = 0.6
"""A shown finding stays until its leading signal falls below this share of its threshold."""


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, sorted by id: the classes in the modules of `rules/`."""
    modules = [
        importlib.import_module(f"{rules_package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(rules_package.__path__)
    ]
    classes = [
        entry
        for module in modules
        for entry in vars(module).values()
        if isinstance(entry, type) and entry.__module__ == module.__name__
    ]
    return tuple(
        sorted((entry() for entry in classes if issubclass(entry, Rule)), key=lambda rule: rule.id)
    )


def rule_ids() -> dict[str, str]:
    """The id of each rule by that id, and by its former ids."""
    return {name: rule.id for rule in all_rules() for name in (rule.id, *rule.once)}


def evaluate(case: Case) -> list[Finding]:
    """Return the conclusions of all rules for this kind of work, after precedence
    (precedence.settle), ranked, with what each may claim (claims.share_out)."""
    settled = settle([conclude(rule, case) for rule in all_rules() if rule.applies(case)], case)
    return share_out([of_whole_step(finding, case) for finding in settled], case)


def conclude(rule: Rule, case: Case) -> Finding:
    """The conclusion of one rule. If the rule raises an error, it has no conclusion, and the other
    rules continue."""
    try:
        return rule.check(case)
    except Missing as missing:
        if case.watched or (case.elsewhere and missing.signal.startswith("server.")):
            return rule.cant_tell(serving.lacks(case, missing.signal), (missing.signal,))
        return rule.cant_tell(str(missing), (missing.signal,))
    except CantTell as reason:
        return rule.cant_tell(str(reason))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return rule.cant_tell(
            f"the rule failed at {where.filename.rpartition('/')[2]}:{where.lineno}: {error}"
        )


def wanted_probes(findings: list[Finding]) -> list[str]:
    """The needed probes, each once: first the probes that a rule without a conclusion needs, in the
    order of PROBES; then the probes that a firing rule needs for a prediction."""
    probes: list[str] = []
    for state in ("cant_tell", "fires"):
        wanted = {
            PROBE_OF[signal]
            for f in findings
            if f.state == state
            for signal in f.missing
            if signal in PROBE_OF
        }
        probes += sorted(wanted, key=ORDER.__getitem__)
    return list(dict.fromkeys(probes))


def about(findings: Iterable[Finding], tunable: Collection[str]) -> list[Finding]:
    """Findings of rules that may suggest a change of one of these knobs to save time. Without
    knobs: all findings."""
    rules = {
        rule.id
        for rule in all_rules()
        if rule.resource == "time" and not set(tunable).isdisjoint(rule.knobs)
    }
    return [finding for finding in findings if not tunable or finding.rule in rules]


class Hysteresis:
    """Findings over successive evaluations: two in a row open a finding, and only a value well
    below the threshold closes it."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._open: dict[str, Finding] = {}
        self.opened: list[Finding] = []
        """The findings that the last update showed for the first time."""

    @property
    def waiting(self) -> bool:
        """Whether a finding needs only one more evaluation to be shown."""
        return any(
            0 < seen < OPEN_AFTER and rule not in self._open for rule, seen in self._seen.items()
        )

    def update(self, findings: list[Finding]) -> list[Finding]:
        """The findings to show after this evaluation, ranked."""
        before = set(self._open)
        shown = rank([self._steady(finding) for finding in findings])
        self.opened = [finding for rule, finding in self._open.items() if rule not in before]
        return shown

    def _steady(self, finding: Finding) -> Finding:
        rule = finding.rule
        if finding.state == "fires":
            self._seen[rule] = self._seen.get(rule, 0) + 1
            if self._seen[rule] >= OPEN_AFTER or rule in self._open:
                self._open[rule] = finding
                return finding
            return Finding(rule, "cant_tell", finding.title, summary=SEEN_ONCE, level=finding.level)
        self._seen[rule] = 0
        if rule in self._open and finding.state == "clear" and finding.level >= CLOSE_BELOW:
            return self._open[rule]
        self._open.pop(rule, None)
        return finding


def probes_waiting(run: Run | None) -> list[str]:
    """The probes that rules need, and that wait for the user's permission in the user's own job."""
    if run is None or run.steady_from_s is None:  # no probe runs before
        return []
    return [
        probe
        for probe in wanted_probes(run.findings)
        if probe in IN_JOB and run.unavailable.get(f"probe.{probe}") == NO_CONSENT
    ]
