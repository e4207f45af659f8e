"""`gpuconsole compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuconsole.cli.options.files import read_snapshot, to_json
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.experiments.compare import compare
from gpuconsole.model.experiments.comparison import Comparison, Difference, MetricChange
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Report, Table, labelled, printed, text
from gpuconsole.report.units import change, quantity

EXAMPLES = """examples:
  gpuconsole compare before.json after.json           the last run of each
  gpuconsole compare session.json#1 session.json#2    two runs of one session
  gpuconsole compare before.json after.json --json

A verdict needs an interval that is completely beyond 2 %, or within 5 % for "same". Two runs at different times differ by about 2 % even
without any change. To prove a change, try it within one run (`gpuconsole run --try`).
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare two runs: every metric with difference, interval and verdict",
        description="Compare two runs from snapshots. The differences of the environment come first, because they may explain the others.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", metavar="A.json[#RUN]", help="a snapshot, and the number of a run in it (default: the last run)")
    parser.add_argument("after", metavar="B.json[#RUN]", help="the same for the second run")
    parser.add_argument(
        "--all", action="store_true", help="print also metrics that are the same, undecided, or single figures without a difference"
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON, and nothing else on stdout")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    (one, here, name), (other, there, other_name) = _run(args.before), _run(args.after)
    found = compare(one, other, (here, there), (name, other_name))
    print(to_json(found) if args.json else printed(comparison_report(found, args.all)))
    return 0


def _run(word: str) -> tuple[Run, Environment, str]:
    """The run that `FILE[#RUN]` names, its environment and a title. Without a number: the last run. Raises UsageError."""
    file, _, number = word.rpartition("#") if "#" in word and not Path(word).exists() else (word, "", "")
    snapshot, _ = read_snapshot(Path(file))
    if not snapshot.runs:
        raise UsageError(f"{file}: this snapshot has no run")
    ids = [one.id for one in snapshot.runs]
    if number and number not in ids:
        raise UsageError(f"{word}: there is no such run; the runs are {', '.join(ids)}")
    chosen = snapshot.runs[ids.index(number)] if number else snapshot.runs[-1]
    return chosen, snapshot.environment, f"{file}#{chosen.id} {chosen.scenario} on {chosen.device}"


def comparison_report(found: Comparison, everything: bool) -> Report:
    """The differences in the environment of the runs, then a table of metrics. `everything`: also unchanged metrics."""
    report: Report = [labelled("before", visible(found.before), column=12), labelled("after", visible(found.after), column=12)]
    report += [labelled("doubt", visible(line), "alert", column=12) for line in found.doubts]
    report += [*_differences("environment", found.environment), *_differences("knobs", found.knobs)]
    shown = [one for one in found.metrics if everything or (one.verdict not in ("same", "undecided") and _moved(one))]
    columns = [Column("metric"), Column("before", ">"), Column("after", ">"), Column("change", ">"), Column("verdict"), Column("interval")]
    if shown:
        report.append(Table(columns, [_cells(one, everything) for one in shown], indent=2))
    hidden = len(found.metrics) - len(shown)
    if hidden:
        report.append(text(f"{hidden} more metrics are the same, undecided or single figures: --all shows them", "dim", indent=2))
    for words, names in (("only before", found.only_before), ("only after", found.only_after)):
        if names and everything:
            report.append(labelled(words, visible(", ".join(names))))
    return report


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
