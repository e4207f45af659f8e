"""Findings in full: evidence, suggestions with their reasons, and the rules that are clear or can't tell."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.diagnosis.standing import why_no_claim
from gpuconsole.model.finding import STAKE, Evidence, Finding, Suggestion
from gpuconsole.model.job.facts import CHANGES_NUMERICS, EFFECTS
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.run import Run
from gpuconsole.model.text import visible
from gpuconsole.report import facts, units
from gpuconsole.report.cells import Row
from gpuconsole.report.experiments.trial import predicted
from gpuconsole.report.page import paragraph
from gpuconsole.report.parts import BLANK, Column, Line, Report, Table, heading, labelled, lay_out, text
from gpuconsole.report.run.attainable import attainable_report
from gpuconsole.report.run.serving import server_report
from gpuconsole.report.run.summary import cause_report, figures, run_head
from gpuconsole.session.api import View

RULE_COLUMN = 38
WAITS_FOR_CORE = 0.02
"""A wait for a CPU core below this share of the step is within the rounding of a share."""


def paint_details(view: View, width: int) -> list[Row]:
    """All findings of the current run, beginning with the findings that fire; then every figure of the run."""
    run = view.run
    if run is None:
        return paragraph("No run: there is nothing to diagnose. Press s on the main screen.", width)
    return lay_out(details_report(run), width)


def details_report(run: Run) -> Report:
    """What went wrong, the findings that fire, the attainable rate, the other findings by state, then the figures of the run."""
    cause = cause_report(run)
    found: Report = [heading("What went wrong"), *cause, BLANK] if cause else []
    firing = facts.firing(run)
    if not firing:
        why = why_no_claim(run)
        found += [heading("No conclusion"), text(f"{_sentence(why)}.", "alert")] if why else []
        found += [] if why else [heading("No rule fires"), text("No rule found time that can be recovered.", "dim")]
        found.append(BLANK)
    for number, finding in enumerate(firing, 1):
        found += [*finding_report(number, finding, run), BLANK]
    if reach := attainable_report(run):
        found += [heading("What this hardware could reach"), *reach, BLANK]
    found += other_rules(run)
    if not run.findings:
        found += [text("No rule was evaluated yet: the run has to reach its steady state first.", "dim"), BLANK]
    return [*found, *server_report(run), run_head(run), *figures(run)]


def other_rules(run: Run) -> Report:
    """The rules that can't tell, then the rules that are clear."""
    states = (("Can't tell", "cant_tell"), ("Clear", "clear"))
    return [part for title, state in states for part in _group(title, [one for one in run.findings if one.state == state])]


def firing_report(run: Run) -> Report:
    """The findings that fire, or the reason why no finding fires: for the terminal."""
    firing = facts.firing(run)
    if not firing:
        why = why_no_claim(run)
        words = f"no conclusion: {visible(why)}" if why else _why_none(run.findings)
        return [Line([("diagnosis: ", ""), (words, "alert" if why else "")])]
    found: Report = [Line([("diagnosis:", "")])]
    for number, finding in enumerate(firing, 1):
        found += [one._replace(indent=one.indent + 2) for one in finding_report(number, finding, run)]
    return found


def stake(finding: Finding) -> str:
    """`41 % recoverable`; for a note: nothing to recover."""
    if finding.note:
        return "nothing to recover"
    return f"{units.percent(finding.recoverable_ratio).strip()} {STAKE[finding.resource]}"


def recoverable(finding: Finding, run: Run) -> str:
    """`90.0 of the 167 ms of each step`: the recoverable time of a training step; empty where that is not known. A share is of the step without its
    wait for a CPU core, so where this wait counts, the words name that time too."""
    whole = run.summary.step_time_s
    if finding.note or finding.resource != "time" or run.serves or whole is None:
        return ""
    delay = run.signals["runq_ratio"].value if run.device == "cpu" and "runq_ratio" in run.signals else 0.0
    base_s = whole.mean * (1 - delay) if delay >= WAITS_FOR_CORE else whole.mean
    lost, base, unit = units.durations(finding.recoverable_ratio * base_s, base_s)
    words = f"{lost.strip()} of the {base.strip()} {unit}"
    if delay < WAITS_FOR_CORE:
        return f"{words} of each step"
    return f"{words} that a step takes without its wait for a CPU core ({units.duration(whole.mean).strip()} with it)"


def finding_report(number: int, finding: Finding, run: Run) -> Report:
    """A finding with its evidence and its suggestions."""
    right = [(stake(finding), "accent"), (f"  confidence {finding.confidence}", "")]
    found: Report = [Line([(f"{number} {finding.title}", "heading")], right=right), text(finding.summary, indent=2)]
    if words := recoverable(finding, run):
        found.append(text(f"Recoverable: {words}.", indent=2))
    found.append(Line([("rule ", "dim"), (finding.rule, "")], indent=2))
    if finding.evidence:
        found.append(_evidence(finding.evidence))
    for suggestion in finding.suggestions:
        found += _suggestion(suggestion, run)
    return found


def _evidence(evidence: Sequence[Evidence]) -> Table:
    columns = (Column("evidence", least=16), Column("value", ">"), Column("threshold", ">"), Column("source", least=8))
    rows = [
        [
            (one.signal, ""),
            (units.quantity(one.value, one.unit), "accent"),
            (units.quantity(one.threshold, one.unit) if one.threshold is not None else "–", "dim"),
            (one.source, "dim"),
        ]
        for one in evidence
    ]
    return Table(columns, rows, indent=2)


def _suggestion(suggestion: Suggestion, run: Run) -> Report:
    gain, changes = [(predicted(suggestion.predicted_speedup), "accent")], describe_changes(suggestion.changes, run.settings)
    found: Report = [Line([("try ", "dim"), (changes, "title")], right=gain, indent=2)]
    found.append(text(suggestion.why.removeprefix(f"{changes}: "), indent=6))
    if effect := run.effect(suggestion.changes):
        found.append(text(f"{effect}: {EFFECTS[effect]}", "alert" if effect == CHANGES_NUMERICS else "dim", indent=6))
    if reason := run.why_not(suggestion.changes):
        found.append(text(f"not tried from here: {reason}", "dim", indent=6))
    if suggestion.code:
        found.append(text("in your own code:", "dim", indent=6))
        found += [Line([(row, "code")], indent=8, hang=4) for row in suggestion.code.splitlines()]
    return found


def _group(title: str, findings: list[Finding]) -> Report:
    """A rule in a row. The title of a clear finding is its positive wording."""
    if not findings:
        return []
    found: Report = [heading(f"{title} ({len(findings)})")]
    for one in findings:
        words = f"{one.title}: {one.summary}" if one.summary and one.state == "clear" else one.summary or one.title
        found.append(labelled(one.rule, words, column=RULE_COLUMN, indent=2))
    return [*found, BLANK]


def _sentence(clause: str) -> str:
    return clause[:1].upper() + clause[1:]


def rule_counts(findings: Sequence[Finding]) -> str:
    """`35 rules are clear, 8 have no data`; empty where there is no such rule."""
    clear, unsure = (sum(one.state == state for one in findings) for state in ("clear", "cant_tell"))
    parts = [f"{clear} {'rule is' if clear == 1 else 'rules are'} clear"] if clear else []
    if unsure:
        parts.append(
            f"{unsure} {'has' if unsure == 1 else 'have'} no data"
            if clear
            else f"{unsure} {'rule has' if unsure == 1 else 'rules have'} no data"
        )
    return ", ".join(parts)


def missing_signals(findings: Sequence[Finding]) -> list[str]:
    """The signals that rules lack, each once."""
    return list(dict.fromkeys(signal for one in findings if one.state == "cant_tell" for signal in one.missing))


def _why_none(findings: Sequence[Finding]) -> str:
    """`no fault found: ...`, with the signals that rules lack."""
    missing = sorted(missing_signals(findings))
    counts = rule_counts(findings) or "no steady state was measured"
    return f"no fault found: {counts}" + (f" (missing: {', '.join(missing)})" if missing else "")
