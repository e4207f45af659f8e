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
from gpuconsole.report.quantities import si

EXAMPLES = """examples:
  gpuconsole compare before.json after.json           the last run of each
  gpuconsole compare session.json#1 session.json#2    two runs of one session
  gpuconsole compare before.json after.json --json

A verdict needs the whole interval beyond 2 %, or within 5 % for "same". Runs at different times are taken to differ by 2 % even where nothing
has changed: to prove a change, try it within one run (`gpuconsole run --try`).
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compare",
        help="two runs side by side: every metric with difference, interval and verdict",
        description="Compare two runs from snapshots. What differs around them comes first, because it may explain the rest.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", metavar="A.json[#RUN]")
    parser.add_argument("after", metavar="B.json[#RUN]")
    parser.add_argument(
        "--all", action="store_true", help="also metrics that are the same, undecided, or a single figure without a difference"
    )
    parser.add_argument("--json", action="store_true", help="the comparison on stdout and nothing else there")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    (one, here, name), (other, there, other_name) = _run(args.before), _run(args.after)
    found = compare(one, other, (here, there), (name, other_name))
    print(to_json(found) if args.json else "\n".join(lines(found, args.all)))
    return 0


def _run(word: str) -> tuple[Run, Environment, str]:
    """The run that `FILE[#RUN]` names: the last one where no number is given. Raises UsageError."""
    file, _, number = word.rpartition("#") if "#" in word and not Path(word).exists() else (word, "", "")
    snapshot, _ = read_snapshot(Path(file))
    if not snapshot.runs:
        raise UsageError(f"{file}: there is no run in it")
    ids = [one.id for one in snapshot.runs]
    if number and number not in ids:
        raise UsageError(f"{word}: the runs in it are {', '.join(ids)}")
    chosen = snapshot.runs[ids.index(number)] if number else snapshot.runs[-1]
    return chosen, snapshot.environment, f"{file}#{chosen.id} {chosen.scenario} on {chosen.device}"


def lines(found: Comparison, everything: bool) -> list[str]:
    told = [visible(f"before  {found.before}"), visible(f"after   {found.after}")]
    told += _differences("environment", found.environment, "the same")
    told += _differences("knobs", found.knobs, "the same")
    shown = [one for one in found.metrics if everything or (one.verdict not in ("same", "undecided") and _moved(one))]
    wide = max((len(one.metric) for one in shown), default=0)
    for one in shown:
        relative = f"{one.relative:+8.1%}" if one.relative is not None else "        "
        interval = f"[{one.change.low:+.1%}, {one.change.high:+.1%}]" if one.change is not None else one.why_not if everything else ""
        told.append(
            f"  {one.metric:<{wide}}  {_value(one.before, one.unit):>15}  {_value(one.after, one.unit):>15}  {relative}  {one.verdict:<10} {interval}".rstrip()
        )
    hidden = len(found.metrics) - len(shown)
    if hidden:
        told.append(f"  {hidden} more are the same, undecided or single figures: --all shows them")
    for words, names in (("only before", found.only_before), ("only after", found.only_after)):
        if names and everything:
            told.append(visible(f"{words}: {', '.join(names)}"))
    return told


def _value(value: float, unit: str) -> str:
    if unit == "s" and abs(value) < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.1%}" if unit == "ratio" else si(value, unit)


def _moved(one: MetricChange) -> bool:
    """A single figure that has hardly changed says nothing."""
    return one.change is not None or one.relative is None or abs(one.relative) >= 0.02


def _differences(title: str, found: list[Difference], none: str) -> list[str]:
    return [f"{title:<12}{none}"] if not found else [visible(f"{title:<12}{one.name} {one.before} -> {one.after}") for one in found]
