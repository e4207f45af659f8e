"""Two runs side by side: the differences of their environments and knobs, and every metric with its difference."""

from __future__ import annotations

from gpuconsole.model.comparison import Comparison, Difference, MetricChange
from gpuconsole.model.text import visible
from gpuconsole.model.units import NA, changes, quantity
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Report, Table, labelled, text

SAME_RUN = "both are the same run of the same session: no two measurements are compared. FILE#1 and FILE#2 name two runs of a session"


def comparison_report(found: Comparison, everything: bool) -> Report:
    """The differences in the environment of the runs, then a table of metrics. `everything`: also unchanged metrics."""
    report = difference_report(found)
    if found.same_run and not everything:
        return report
    table = metric_table(found, everything)
    report += [table] if table.rows else []
    if not everything and any(verdict[0] == "not judged" for *_, verdict, _ in table.rows):
        report.append(
            text("not judged: no interval, because of single figures, few points or values of 0; --all shows which", "dim", indent=2)
        )
    if hidden := len(found.metrics) - len(table.rows):
        what = "metric is" if hidden == 1 else "metrics are"
        report.append(text(f"{hidden} more {what} the same, undecided or single figures: --all shows them", "dim", indent=2))
    for words, names in (("only before", found.only_before), ("only after", found.only_after)):
        if names and everything:
            report.append(labelled(words, visible(", ".join(names))))
    return report


def difference_report(found: Comparison) -> Report:
    """The two runs, the doubts about them, and the differences of their environments and knobs."""
    report: Report = [labelled("before", visible(found.before), column=12), labelled("after", visible(found.after), column=12)]
    report += [labelled("differs", visible(difference(one)), "alert", column=12) for one in found.unlike]
    if line := caution(found):
        report.append(labelled("caution", visible(line), "alert", column=12))
    report += [labelled("doubt", visible(line), "alert", column=12) for line in found.doubts]
    if found.same_run:
        return report
    report += [*_environment(found), *_knobs(found.knobs)]
    if line := step_caution(found):
        report.append(labelled("caution", visible(line), "alert", column=12))
    return report


def difference(one: Difference) -> str:
    """`batch_size 8 -> 16`."""
    return f"{one.name} {one.before} -> {one.after}"


def caution(found: Comparison) -> str:
    """Why a ratio of the two runs is not the speedup of a change; empty where it is."""
    if found.same_run:
        return SAME_RUN
    return f"the runs differ in {_listed(found.unlike)}: their ratio is not the speedup of a change" if found.unlike else ""


def step_caution(found: Comparison) -> str:
    """Why the ratio of two step times is not a speedup; empty where it is, and where the whole comparison has a caution."""
    if found.unlike or not found.other_steps:
        return ""
    return f"{_listed(found.other_steps)}: a step has other work, so compare rates; the ratio of two step times is not a speedup"


def _listed(found: list[Difference]) -> str:
    """`scenario, device and torch`."""
    names = [one.name for one in found]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def metric_table(found: Comparison, everything: bool) -> Table:
    """A row for each metric. `everything`: also for the metrics that are the same, undecided, or single figures without a difference. The
    throughput always has a row."""
    main = throughput_of(found)
    shown = [one for one in found.metrics if everything or one is main or (one.verdict not in ("same", "undecided") and _moved(one))]
    columns = [Column("metric"), Column("before", ">"), Column("after", ">"), Column("change", ">"), Column("verdict"), Column("interval")]
    return Table(columns, [_cells(one, everything) for one in shown], indent=2)


def _cells(one: MetricChange, everything: bool) -> list[Segment]:
    relative, interval = relative_words(one)
    values = [quantity(value, one.unit) for value in (one.before, one.after)]
    return [(words, "") for words in (one.metric, *values, relative, one.verdict, interval or (one.why_not if everything else ""))]


def relative_words(one: MetricChange) -> tuple[str, str]:
    """`+41.0 %` and `[+38.0 %, +44.1 %]`, all in one unit; empty where the change or its interval is not known."""
    if one.relative is None:
        return "", ""
    if one.change is None:
        return changes(one.relative)[0], ""
    relative, low, high = changes(one.relative, one.change.low, one.change.high)
    return relative, f"[{low}, {high}]"


def throughput_of(found: Comparison) -> MetricChange | None:
    """The main rate of the two runs (see `Run.throughput`); None where they have none in common."""
    known = {one.metric: one for one in found.metrics}
    return known.get("workload.tokens_per_s", known.get("workload.samples_per_s"))


def _moved(one: MetricChange) -> bool:
    """Whether the change gets a row. A single figure without an interval must differ by 2 %."""
    return one.change is not None or one.relative is None or abs(one.relative) >= 0.02


def _environment(found: Comparison) -> Report:
    """The differences of the environment, without those that have a `differs` line."""
    if not found.environment:
        return [labelled("environment", "the same", column=12)]
    above = {"devices" if one.name == "device" else one.name for one in found.unlike}
    return [labelled("environment", visible(difference(one)), column=12) for one in found.environment if one.name not in above]


def _knobs(found: list[Difference]) -> Report:
    """A line for each knob that differs; the knobs of only one run share a line."""
    if not found:
        return [labelled("knobs", "the same", column=12)]
    both = [one for one in found if NA not in (one.before, one.after)]
    shown: Report = [labelled("knobs", visible(difference(one)), column=12) for one in both]
    for words, names in (
        ("only before", [one.name for one in found if one.after == NA]),
        ("only after", [one.name for one in found if one.before == NA]),
    ):
        if names:
            shown.append(labelled("knobs", visible(f"{words}: {', '.join(names)}"), column=12))
    return shown
