"""Finding details: evidence, suggestions with their reasons, and what is clear or cannot be told."""

from __future__ import annotations

from gpuconsole.model.finding import STAKE, Evidence, Finding, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.report import facts
from gpuconsole.report import units as format
from gpuconsole.report.cells import Row, blank, clean, fit, line, spread
from gpuconsole.report.page import heading, labelled, paragraph
from gpuconsole.session.api import View

FIGURE = 20
"""Widest column of figures: a number and its unit."""


def paint_details(view: View, width: int) -> list[Row]:
    """All findings of the current run, those that fire first."""
    run = view.run
    if run is None:
        return paragraph("Nothing is running, so there is nothing to diagnose. Press s on the main screen.", width)
    rows: list[Row] = []
    firing = facts.firing(run)
    if not firing:
        rows += [heading("Nothing fires", width), *paragraph("No rule found time that could be won back.", width, "dim"), blank(width)]
    for number, finding in enumerate(firing, 1):
        rows += [*_finding(number, finding, run.knobs, width), blank(width)]
    rows += _group("Can't tell", [one for one in run.findings if one.state == "cant_tell"], width)
    rows += _group("Clear", [one for one in run.findings if one.state == "clear"], width)
    if run.baseline is not None:
        rows += [heading("Baseline", width), *paragraph(run.baseline.words, width), blank(width)]
    if not run.findings:
        rows += paragraph("No rule has been evaluated yet: the run has to reach its steady state first.", width, "dim")
    return rows


def _finding(number: int, finding: Finding, knobs: Knobs, width: int) -> list[Row]:
    share = "for information" if finding.note else f"{format.percent(finding.recoverable_ratio).strip()} {STAKE[finding.resource]}"
    rows = [
        spread(width, [(f"{number} {finding.title}", "heading")], [(f"  {share}", "accent"), (f"   confidence {finding.confidence}", "")])
    ]
    rows += paragraph(finding.summary, width, "", 2)
    rows += [line(width, ("  rule ", "dim"), (finding.rule, ""))]
    if finding.evidence:
        rows += [blank(width), *_evidence(finding.evidence, width)]
    for suggestion in finding.suggestions:
        rows += [blank(width), *_suggestion(suggestion, knobs, width)]
    return rows


def _evidence(evidence: tuple[Evidence, ...], width: int) -> list[Row]:
    """Signal, value, threshold and source in columns; the source takes what is left."""
    names = min(max(len("evidence"), *(len(clean(one.signal)) for one in evidence)), max(16, width // 3))
    values = [format.quantity(one.value, one.unit) for one in evidence]
    limits = [format.quantity(one.threshold, one.unit) if one.threshold is not None else "–" for one in evidence]
    of_values, of_limits = (min(FIGURE, max(len(head), *map(len, cells))) for head, cells in (("value", values), ("threshold", limits)))
    head = f"  {fit('evidence', names)}  {'value':>{of_values}}  {'threshold':>{of_limits}}  source"
    rows = [line(width, (head, "dim"))]
    for one, value, limit in zip(evidence, values, limits, strict=True):
        figures = f"{fit(value, of_values, '>')}  {fit(limit, of_limits, '>')}"
        rows.append(line(width, (f"  {fit(one.signal, names)}  ", ""), (figures, "accent"), (f"  {one.source}", "dim")))
    return rows


def _suggestion(suggestion: Suggestion, knobs: Knobs, width: int) -> list[Row]:
    predicted = suggestion.predicted_speedup
    gain = f"predicted {format.interval(predicted.low, predicted.high)}" if predicted else "no prediction"
    rows = [spread(width, [("  try ", "dim"), (describe_changes(suggestion.changes, knobs), "title")], [(f"  {gain}", "accent")])]
    rows += paragraph(suggestion.why, width, "", 6)
    if suggestion.code:
        rows.append(line(width, ("      in your own code:", "dim")))
        rows += [line(width, ("        ", ""), (text, "code")) for text in suggestion.code.splitlines()]
    return rows


def _group(title: str, findings: list[Finding], width: int) -> list[Row]:
    if not findings:
        return []
    rows = [heading(f"{title} ({len(findings)})", width)]
    for finding in findings:
        rows += labelled(f"  {finding.rule}", finding.summary or finding.title, width, min(38, width // 2))
    return [*rows, blank(width)]
