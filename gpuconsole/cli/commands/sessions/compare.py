"""`gpuconsole compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.files import check_sharing, read_snapshot, share
from gpuconsole.cli.options import JSON, SHARING, Option, UsageError
from gpuconsole.experiments.compare import compare
from gpuconsole.report.comparison import comparison_report
from gpuconsole.report.share.comparison import Side, comparison_document

HELP = "compare two runs, metric by metric"
DESCRIPTION = "Compare two runs from snapshots. The differences of the environment come first, because they may explain the others."
EXAMPLES = """examples:
  gpuconsole compare before.json after.json           the last run of each
  gpuconsole compare session.json#1 session.json#2    two runs of one session
  gpuconsole compare before.json after.json --json
  gpuconsole compare before.json after.json --html page.html      a page to share; also --markdown FILE

A verdict needs an interval that is completely beyond 2 %, or within 5 % for "same". Two runs at different times differ by about 2 % even
without any change. To prove a change, try it within one run (`gpuconsole run --try`). If the scripts or scenarios, the devices, the versions or the
batch sizes differ, the report names the difference, and says that a ratio is not the speedup of a change. The exit code stays 0.
"""
OTHER_OUTPUT = dict.fromkeys(("--json", "--html", "--markdown"), "is for the table on the terminal; the other outputs have all metrics")
TO_FILES = dict.fromkeys(("--html", "--markdown"), "prints on stdout: it excludes --html and --markdown")
OPTIONS = (
    Option("before", "a snapshot, and the number of a run in it (default: the last run)", "A.json[#RUN]", completes="file"),
    Option("after", "the same for the second run", "B.json[#RUN]", completes="file"),
    Option("--all", "print also metrics that are the same, undecided, or single numbers without a difference", refused=OTHER_OUTPUT),
    JSON._replace(help="print the comparison as JSON, and nothing else on stdout", refused=TO_FILES),
    *SHARING,
)


def run(args: argparse.Namespace) -> int:
    to_files = check_sharing(args)
    before, after = _side(args.before), _side(args.after)
    environments = before.session.environment, after.session.environment
    titles = _title(args.before, before, to_files), _title(args.after, after, to_files)
    comparison = compare(before.run, after.run, environments, titles, (before.session.trials, after.session.trials))
    if to_files:
        share(args, comparison_document(comparison, before, after))
    else:
        output.show_result(args, comparison, lambda: comparison_report(comparison, args.all))
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
    ids = [run.id for run in snapshot.runs]
    if number and number not in ids:
        raise UsageError(f"{word}: there is no such run; the runs are {', '.join(ids)}")
    return Side(snapshot.runs[ids.index(number)] if number else snapshot.runs[-1], snapshot)


def _title(word: str, side: Side, shared: bool) -> str:
    """`before.json#1 train-gpt on cpu`. `shared`: without the folder."""
    file = _file(word)[0]
    return f"{Path(file).name if shared else file}#{side.run.id} {side.run.scenario} on {side.run.device}"
