"""The decision of a gate: the verdict first, then the figures of both sides, what moved, and how it was decided. For the terminal, and as a short comment."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.comparison import Gate, GateFigure, GateFinding
from gpuconsole.model.text import cut, percent, visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.comparison import difference
from gpuconsole.report.parts import BLANK, Column, Report, Table, labelled, text
from gpuconsole.report.run.account import NAMES

MOST_LISTED = 8
"""Findings and differences that are named, of each; a comment has fewer than 60 lines."""
LONGEST = 160
JUDGED = {"throughput": "throughput", "e2e": "speed (1 / mean E2E)"}
STYLES = {"regression": "alert", "no regression": "good", "undecided": "title"}


def gate_report(gate: Gate) -> Report:
    """The whole report. The first line is the verdict."""
    report: Report = [
        text(headline(gate), STYLES[gate.verdict]),
        BLANK,
        text(visible(f"{gate.scenario} on {gate.device}: {_count(gate.base_runs, 'base run')}, {_count(gate.new_runs, 'new run')}")),
        *([text(visible(f"{gate.why[:1].upper()}{gate.why[1:]}."))] if gate.why else []),
        BLANK,
        Table(
            [Column("figure"), Column("base", ">"), Column("new", ">"), Column("change", ">")], [_row(figure) for figure in gate.figures]
        ),
        BLANK,
    ]
    report += [
        labelled("new finding" if finding.new > finding.base else "finding gone", _finding(gate, finding))
        for finding in gate.findings[:MOST_LISTED]
    ]
    report += [labelled("findings", f"{len(gate.findings) - MOST_LISTED} more moved")] if len(gate.findings) > MOST_LISTED else []
    report += [labelled("findings", "none is new, none is gone")] if not gate.findings and not gate.cannot_tell else []
    report += [labelled("differs", cut(visible(difference(changed)), LONGEST)) for changed in gate.differences[:MOST_LISTED]]
    report += [labelled("differs", f"{len(gate.differences) - MOST_LISTED} more settings")] if len(gate.differences) > MOST_LISTED else []
    report += [labelled("can't tell", visible(line)) for line in gate.cannot_tell]
    report.append(labelled("decided", _how(gate)))
    report += [labelled("device", visible(label)) for label in gate.labels]
    return report


def headline(gate: Gate) -> str:
    """`Regression: 0.950x [0.941, 0.959] of the base throughput, limit 0.97`."""
    ratio = gate.ratio
    measured = f"{ratio.estimate:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}] of the base {JUDGED[gate.judged]}, limit {gate.fail_below:g}"
    return f"{gate.verdict.capitalize()}: {measured}"


def _row(figure: GateFigure) -> list[Segment]:
    name, _, part = figure.name.partition(": ")
    title = f"{name}: {NAMES.get(part, part)}" if part else name
    change = units.change(figure.relative) if figure.relative is not None else ""
    return [(title, ""), (units.quantity(figure.base, figure.unit), ""), (units.quantity(figure.new, figure.unit), ""), (change, "")]


def _finding(gate: Gate, finding: GateFinding) -> str:
    counts = f"{finding.base} of {gate.base_runs} base runs, {finding.new} of {gate.new_runs} new runs"
    return f"{cut(visible(finding.title), LONGEST)} ({visible(finding.rule)}; {counts})"


def _how(gate: Gate) -> str:
    """`by 5 and 5 runs, measured in turn; equal runs differ by 1.1 %; 95 % interval; without run-queue delay`."""
    ratio = gate.ratio
    design = "measured in turn" if ratio.in_turn else f"measured apart, on {ratio.occasions[0]} and {ratio.occasions[1]} occasions"
    unit = "runs" if ratio.in_turn else "occasions"
    noise = f"equal {unit} {'are assumed to differ' if ratio.assumed else 'differ'} by {percent(ratio.spread, 1)}"
    clock = "; rates without the run-queue delay of the training thread" if gate.clock == "contention_free" else ""
    return f"by whole runs, {design}; {noise} (standard deviation); 95 % interval{clock}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
