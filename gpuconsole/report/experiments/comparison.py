"""Two runs side by side: the differences of their environments and knobs, and every metric with its difference."""

from __future__ import annotations

from gpuconsole.model.experiments.comparison import Comparison, Difference, MetricChange
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Report, Table, labelled, text
from gpuconsole.report.units import change, quantity


def comparison_report(found: Comparison, everything: bool) -> Report:
    """The differences in the environment of the runs, then a table of metrics. `everything`: also unchanged metrics."""
    report = difference_report(found)
    table = metric_table(found, everything)
    report += [table] if table.rows else []
    if hidden := len(found.metrics) - len(table.rows):
        report.append(text(f"{hidden} more metrics are the same, undecided or single figures: --all shows them", "dim", indent=2))
    for words, names in (("only before", found.only_before), ("only after", found.only_after)):
        if names and everything:
            report.append(labelled(words, visible(", ".join(names))))
    return report


def difference_report(found: Comparison) -> Report:
    """The two runs, the doubts about them, and the differences of their environments and knobs."""
    report: Report = [labelled("before", visible(found.before), column=12), labelled("after", visible(found.after), column=12)]
    report += [labelled("doubt", visible(line), "alert", column=12) for line in found.doubts]
    return [*report, *_differences("environment", found.environment), *_differences("knobs", found.knobs)]


def metric_table(found: Comparison, everything: bool) -> Table:
    """A row for each metric. `everything`: also for the metrics that are the same, undecided, or single figures without a difference."""
    shown = [one for one in found.metrics if everything or (one.verdict not in ("same", "undecided") and _moved(one))]
    columns = [Column("metric"), Column("before", ">"), Column("after", ">"), Column("change", ">"), Column("verdict"), Column("interval")]
    return Table(columns, [_cells(one, everything) for one in shown], indent=2)


def _cells(one: MetricChange, everything: bool) -> list[Segment]:
    interval = f"[{change(one.change.low)}, {change(one.change.high)}]" if one.change is not None else one.why_not if everything else ""
    values = [quantity(value, one.unit) for value in (one.before, one.after)]
    relative = change(one.relative) if one.relative is not None else ""
    return [(words, "") for words in (one.metric, *values, relative, one.verdict, interval)]


def _moved(one: MetricChange) -> bool:
    """Whether the change gets a row. A single figure without an interval must differ by 2 %."""
    return one.change is not None or one.relative is None or abs(one.relative) >= 0.02


def _differences(title: str, found: list[Difference]) -> Report:
    if not found:
        return [labelled(title, "the same", column=12)]
    return [labelled(title, visible(f"{one.name} {one.before} -> {one.after}"), column=12) for one in found]
