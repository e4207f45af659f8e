"""`gpuconsole compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.options.files import read_snapshot, to_json
from gpuconsole.cli.options.usage import UsageError, refuse_given
from gpuconsole.cli.sharing import add_sharing_options, check_sharing, share
from gpuconsole.experiments.compare import compare
from gpuconsole.report.comparison import comparison_report
from gpuconsole.report.share.comparison import Side, comparison_document

EXAMPLES = """examples:
  gpuconsole compare before.json after.json           the last run of each
  gpuconsole compare session.json#1 session.json#2    two runs of one session
  gpuconsole compare before.json after.json --json
  gpuconsole compare before.json after.json --html page.html      a page to share; also --markdown FILE

A verdict needs an interval that is completely beyond 2 %, or within 5 % for "same". Two runs at different times differ by about 2 % even
without any change. To prove a change, try it within one run (`gpuconsole run --try`). If the scripts or scenarios, the devices, the versions or the
batch sizes differ, the report names the difference, and says that a ratio is not the speedup of a change. The exit code stays 0.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare two runs, metric by metric",
        description="Compare two runs from snapshots. The differences of the environment come first, because they may explain the others.",
        epilog=EXAMPLES,
    )
    parser.add_argument("before", metavar="A.json[#RUN]", help="a snapshot, and the number of a run in it (default: the last run)")
    parser.add_argument("after", metavar="B.json[#RUN]", help="the same for the second run")
    parser.add_argument(
        "--all", action="store_true", help="print also metrics that are the same, undecided, or single figures without a difference"
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON, and nothing else on stdout")
    add_sharing_options(parser)
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    wanted = check_sharing(args)
    if wanted and args.json:
        raise UsageError("--json prints on stdout: it excludes --html and --markdown")
    if wanted or args.json:
        refuse_given(args, "is for the table on the terminal; the other outputs have all metrics", "all")
    before, after = _side(args.before), _side(args.after)
    environments = before.session.environment, after.session.environment
    titles = _title(args.before, before, wanted), _title(args.after, after, wanted)
    found = compare(before.run, after.run, environments, titles, (before.session.trials, after.session.trials))
    if wanted:
        share(args, comparison_document(found, before, after))
    elif args.json:
        print(to_json(found))
    else:
        output.show(comparison_report(found, args.all))
    return OK


def _file(word: str) -> tuple[str, str]:
    """`FILE` and `RUN` of `FILE[#RUN]`."""
    file, _, number = word.rpartition("#") if "#" in word and not Path(word).exists() else (word, "", "")
    return file, number


def _side(word: str) -> Side:
    """The run that `FILE[#RUN]` names, and its session. Without a number: the last run. Raises UsageError."""
    file, number = _file(word)
    snapshot, _ = read_snapshot(Path(file))
    if not snapshot.runs:
        raise UsageError(f"{file}: this snapshot has no run")
    ids = [one.id for one in snapshot.runs]
    if number and number not in ids:
        raise UsageError(f"{word}: there is no such run; the runs are {', '.join(ids)}")
    return Side(snapshot.runs[ids.index(number)] if number else snapshot.runs[-1], snapshot)


def _title(word: str, side: Side, shared: bool) -> str:
    """`before.json#1 train-gpt on cpu`. `shared`: without the folder."""
    file = _file(word)[0]
    return f"{Path(file).name if shared else file}#{side.run.id} {side.run.scenario} on {side.run.device}"
