"""Two runs side by side: the differences of their environments and knobs, and every metric with its
difference."""

from __future__ import annotations

from gpuconsole.experiments.throughput import FREE
from gpuconsole.model import units
from gpuconsole.model.comparison import (
    Comparison,
    Difference,
    Gate,
    GateFigure,
    GateFinding,
    MetricChange,
)
from gpuconsole.model.text import cut, percent, visible
from gpuconsole.model.units import NA, changes, quantity
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import BLANK, Column, Report, Table, labelled, text
from gpuconsole.report.run.breakdown import NAMES

SAME_RUN = (
    "both are the same run of the same session: no two measurements are compared. FILE#1 and FILE#2"
    " name two runs of a session"
)


def comparison_report(comparison: Comparison, everything: bool) -> Report:
    """The differences in the environment of the runs, then a table of metrics. `everything`: also
    unchanged metrics."""
    report = difference_report(comparison)
    if comparison.same_run and not everything:
        return report
    table = metric_table(comparison, everything)
    report += [table] if table.rows else []
    if not everything and any(verdict[0] == "not judged" for *_, verdict, _ in table.rows):
        report.append(
            text(
                (
                    "not judged: no interval, because of single numbers, few points or values of 0;"
                    " --all shows which"
                ),
                "dim",
                indent=2,
            )
        )
    if hidden := len(comparison.metrics) - len(table.rows):
        noun = "metric is" if hidden == 1 else "metrics are"
        report.append(
            text(
                f"{hidden} more {noun} undecided or single numbers: --all shows them",
                "dim",
                indent=2,
            )
        )
    for side, names in (
        ("only before", comparison.only_before),
        ("only after", comparison.only_after),
    ):
        if names and everything:
            report.append(labelled(side, visible(", ".join(names))))
    return report


def difference_report(comparison: Comparison) -> Report:
    """The two runs, the doubts about them, and the differences of their environments and knobs."""
    report: Report = [
        labelled("before", visible(comparison.before), column=12),
        labelled("after", visible(comparison.after), column=12),
    ]
    report += [
        labelled("differs", visible(difference(changed)), "alert", column=12)
        for changed in comparison.unlike
    ]
    if line := caution(comparison):
        report.append(labelled("caution", visible(line), "alert", column=12))
    report += [labelled("doubt", visible(line), "alert", column=12) for line in comparison.doubts]
    if comparison.same_run:
        return report
    report += [labelled("can't tell", visible(line), column=12) for line in comparison.cannot_tell]
    report += [*_environment(comparison), *_knobs(comparison)]
    if line := step_caution(comparison):
        report.append(labelled("caution", visible(line), "alert", column=12))
    return report


def difference(changed: Difference) -> str:
    """`batch_size 8 -> 16`."""
    return f"{changed.name} {changed.before} -> {changed.after}"


def caution(comparison: Comparison) -> str:
    """Why a ratio of the two runs is not the speedup of a change; empty where it is."""
    if comparison.same_run:
        return SAME_RUN
    return (
        (
            f"the runs differ in {_listed(comparison.unlike)}: their ratio is not the speedup of a"
            " change"
        )
        if comparison.unlike
        else ""
    )


def step_caution(comparison: Comparison) -> str:
    """Why the ratio of two step times is not a speedup; empty where it is, and where the whole
    comparison has a caution."""
    if comparison.unlike or not comparison.other_steps:
        return ""
    return (
        f"{_listed(comparison.other_steps)}: a step has other work, so compare rates; the ratio of"
        " two step times is not a speedup"
    )


def _listed(differences: list[Difference]) -> str:
    """`scenario, device and torch`."""
    names = [changed.name for changed in differences]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def metric_table(comparison: Comparison, everything: bool) -> Table:
    """A row for each metric. `everything`: also for the metrics that are undecided, or single
    figures without a difference. The throughput always has a row."""
    main = throughput_of(comparison)
    shown = [
        metric
        for metric in comparison.metrics
        if everything or metric is main or (metric.verdict != "undecided" and _moved(metric))
    ]
    columns = [
        Column("metric"),
        Column("before", ">"),
        Column("after", ">"),
        Column("change", ">"),
        Column("verdict"),
        Column("interval"),
    ]
    return Table(columns, [_cells(metric, everything) for metric in shown], indent=2)


def _cells(metric: MetricChange, everything: bool) -> list[Segment]:
    relative, interval = relative_words(metric)
    values = [quantity(value, metric.unit) for value in (metric.before, metric.after)]
    return [
        (cell, "")
        for cell in (
            metric.metric,
            *values,
            relative,
            metric.verdict,
            interval or (metric.why_not if everything else ""),
        )
    ]


def relative_words(metric: MetricChange) -> tuple[str, str]:
    """`+41.0 %` and `[+38.0 %, +44.1 %]`, all in one unit; empty where the change or its interval
    is not known."""
    if metric.relative is None:
        return "", ""
    if metric.change is None:
        return changes(metric.relative)[0], ""
    relative, low, high = changes(metric.relative, metric.change.low, metric.change.high)
    return relative, f"[{low}, {high}]"


def throughput_of(comparison: Comparison) -> MetricChange | None:
    """The main rate of the two runs (see `Run.throughput`), on the clock of the gate; None where
    they have none in common."""
    metrics = {metric.metric: metric for metric in comparison.metrics}
    names = (
        f"workload.{work}_per_s{clock}"
        for work in ("tokens", "samples")
        for clock in (f" {FREE}", "")
    )
    return next((metrics[name] for name in names if name in metrics), None)


def _moved(metric: MetricChange) -> bool:
    """Whether the change gets a row. A single figure without an interval must differ by 2 %."""
    return metric.change is not None or metric.relative is None or abs(metric.relative) >= 0.02


def _environment(comparison: Comparison) -> Report:
    """The differences of the environment, without those that have a `differs` line."""
    if not comparison.environment:
        return [] if comparison.cannot_tell else [labelled("environment", "the same", column=12)]
    above = {
        "devices" if changed.name == "device" else changed.name for changed in comparison.unlike
    }
    return [
        labelled("environment", visible(difference(changed)), column=12)
        for changed in comparison.environment
        if changed.name not in above
    ]


def _knobs(comparison: Comparison) -> Report:
    """A line for each knob that differs; the knobs of only one run share a line."""
    if not comparison.knobs:
        return (
            []
            if comparison.cannot_tell and comparison.unlike
            else [labelled("knobs", "the same", column=12)]
        )
    differences = comparison.knobs
    both = [changed for changed in differences if NA not in (changed.before, changed.after)]
    shown: Report = [labelled("knobs", visible(difference(changed)), column=12) for changed in both]
    for side, names in (
        ("only before", [changed.name for changed in differences if changed.after == NA]),
        ("only after", [changed.name for changed in differences if changed.before == NA]),
    ):
        if names:
            shown.append(labelled("knobs", visible(f"{side}: {', '.join(names)}"), column=12))
    return shown


# --- the decision of a gate, for the terminal and as a short comment ------------------------------
# The verdict first, then the figures of both sides, what moved, and how it was decided.

MAX_LISTED = 8
"""Findings and differences that are named, of each; a comment has fewer than 60 lines."""
MAX_TEXT_LENGTH = 160
JUDGED = {"throughput": "throughput", "e2e": "speed (1 / mean E2E)"}
STYLES = {"regression": "alert", "no regression": "good", "undecided": "title"}


def gate_report(gate: Gate) -> Report:
    """The whole report. The first line is the verdict."""
    report: Report = [
        text(headline(gate), STYLES[gate.verdict]),
        BLANK,
        text(
            visible(
                f"{gate.scenario} on {gate.device}: {_count(gate.base_runs, 'base run')},"
                f" {_count(gate.new_runs, 'new run')}"
            )
        ),
        *([text(visible(f"{gate.why[:1].upper()}{gate.why[1:]}."))] if gate.why else []),
        BLANK,
        Table(
            [Column("figure"), Column("base", ">"), Column("new", ">"), Column("change", ">")],
            [_row(figure) for figure in gate.figures],
        ),
        BLANK,
    ]
    report += [
        labelled(
            "new finding" if finding.new > finding.base else "finding gone", _finding(gate, finding)
        )
        for finding in gate.findings[:MAX_LISTED]
    ]
    report += (
        [labelled("findings", f"{len(gate.findings) - MAX_LISTED} more moved")]
        if len(gate.findings) > MAX_LISTED
        else []
    )
    report += (
        [labelled("findings", "none is new, none is gone")]
        if not gate.findings and not gate.cannot_tell
        else []
    )
    report += [
        labelled("differs", cut(visible(difference(changed)), MAX_TEXT_LENGTH))
        for changed in gate.differences[:MAX_LISTED]
    ]
    report += (
        [labelled("differs", f"{len(gate.differences) - MAX_LISTED} more settings")]
        if len(gate.differences) > MAX_LISTED
        else []
    )
    report += [labelled("can't tell", visible(line)) for line in gate.cannot_tell]
    report.append(labelled("decided", _how(gate)))
    report += [labelled("device", visible(label)) for label in gate.labels]
    return report


def headline(gate: Gate) -> str:
    """`Regression: 0.950x [0.941, 0.959] of the base throughput, limit 0.97`."""
    ratio = gate.ratio
    measured = (
        f"{ratio.estimate:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}] of the base"
        f" {JUDGED[gate.judged]}, limit {gate.fail_below:g}"
    )
    return f"{gate.verdict.capitalize()}: {measured}"


def _row(figure: GateFigure) -> list[Segment]:
    name, _, part = figure.name.partition(": ")
    title = f"{name}: {NAMES.get(part, part)}" if part else name
    change = units.change(figure.relative) if figure.relative is not None else ""
    return [
        (title, ""),
        (units.quantity(figure.base, figure.unit), ""),
        (units.quantity(figure.new, figure.unit), ""),
        (change, ""),
    ]


def _finding(gate: Gate, finding: GateFinding) -> str:
    counts = (
        f"{finding.base} of {gate.base_runs} base runs, {finding.new} of {gate.new_runs} new runs"
    )
    return f"{cut(visible(finding.title), MAX_TEXT_LENGTH)} ({visible(finding.rule)}; {counts})"


def _how(gate: Gate) -> str:
    """`by 5 and 5 runs, measured in turn; equal runs differ by 1.1 %; 95 % interval; rates without
    waits for other programs`."""
    ratio = gate.ratio
    design = (
        "measured in turn"
        if ratio.in_turn
        else f"measured apart, on {ratio.occasions[0]} and {ratio.occasions[1]} occasions"
    )
    unit = "runs" if ratio.in_turn else "occasions"
    noise = (
        f"equal {unit} {'are assumed to differ' if ratio.assumed else 'differ'} by"
        f" {percent(ratio.spread, 1)}"
    )
    clock = f"; rates {FREE}" if gate.clock == "contention_free" else ""
    return f"by whole runs, {design}; {noise} (standard deviation); 95 % interval{clock}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
