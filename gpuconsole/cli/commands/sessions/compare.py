"""`gpuconsole compare`."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.exits import FAILED, OK, UNDECIDED
from gpuconsole.cli.files import STDOUT, check_sharing, read_measured, share, write_or_print
from gpuconsole.cli.options import JSON, SHARING, Option, UsageError
from gpuconsole.experiments.clients import unlike
from gpuconsole.experiments.compare import compare
from gpuconsole.experiments.gate import MAX_LIMIT, MIN_LIMIT, GateError, judge
from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.model.text import visible
from gpuconsole.report.comparison import comparison_report, gate_report
from gpuconsole.report.machine.environment import device_kinds
from gpuconsole.report.share.comparison import comparison_document
from gpuconsole.report.share.markdown import parts_markdown

HELP = "compare two runs, metric by metric; or decide in CI"
DESCRIPTION = """Compare two runs from snapshots, or from result files of other clients of model
servers (vllm bench serve, SGLang's bench_serving, AIPerf, GuideLLM: recognised by their content).
Differences in hardware, software and settings come first: they may explain differences in speed.

With --fail-below, decide whether NEW is slower than BASE. Each side is one snapshot, or better a
folder of several. A run counts once, and the noise is the spread between the runs of a side."""
EXAMPLES = """examples:
  gpuconsole compare before.json after.json           the last run of each
  gpuconsole compare session.json#1 session.json#2    two runs of one session
  gpuconsole compare before.json after.json --json
  gpuconsole compare before.json after.json --html page.html
      a page to share; also --markdown FILE
  gpuconsole compare base/ new/ --fail-below 0.97 --markdown
      a gate for CI: the comment for a pull request on stdout
  gpuconsole compare vllm-old.json vllm-new.json
      two results of `vllm bench serve --save-result --save-detailed`

A verdict needs an interval that is completely beyond 2 %. One run does not show how much equal runs
differ: 5 % is assumed, so two runs are
undecided below about 15 %. To prove a change, try it within one run (`gpuconsole run --try`), or
measure several runs (--fail-below). If the scripts or scenarios, the devices, the versions or the
batch sizes differ, the report names the difference, and says that a ratio is not the speedup of a
change. The exit code stays 0.

With --fail-below the exit codes are: 0 no regression, 1 regression, 3 undecided (the noise is too
large; the report says how many runs are needed).
Other hardware, another scenario or another command gives 2. docs/ci.md has a GitHub action and a
GitLab template.
"""
SUFFIXES = (".json", ".jsonl")
OF_THE_GATE = {
    "--fail-below": (
        "does not go with --fail-below, which makes a short report; --markdown FILE writes it"
    )
}
OTHER_OUTPUT = dict.fromkeys(
    ("--json", "--html", "--markdown"),
    "is for the table on the terminal; the other outputs have all metrics",
)
TO_FILES = dict.fromkeys(
    ("--html", "--markdown"), "prints on stdout: it excludes --html and --markdown"
)
HTML, MARKDOWN = SHARING


def _limit(text: str) -> float:
    """The limit of --fail-below. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not MIN_LIMIT <= value <= MAX_LIMIT:
        raise ValueError(
            f"{text}: must be {MIN_LIMIT} to {MAX_LIMIT}: a difference below 2 % counts as none"
        )
    return value


OPTIONS = (
    Option(
        "before",
        (
            "a snapshot or a result file, and the number of a run in it (default: the last run); a"
            " folder with --fail-below"
        ),
        "BASE[#RUN]",
        completes="file",
    ),
    Option("after", "the same for the second run", "NEW[#RUN]", completes="file"),
    Option(
        "--fail-below",
        (
            "exit code 1 if the throughput of NEW is surely below this share of that of BASE, and 3"
            " if the noise is too large to tell"
        ),
        "RATIO",
        _limit,
    ),
    Option(
        "--undecided-fails",
        "exit code 1 in place of 3",
        refused={"no --fail-below": "needs --fail-below RATIO"},
    ),
    Option(
        "--all",
        "print also metrics that are undecided, or single numbers without a difference",
        refused={**OTHER_OUTPUT, **OF_THE_GATE},
    ),
    JSON._replace(
        help="print the comparison as JSON, and nothing else on stdout", refused=TO_FILES
    ),
    HTML._replace(refused=OF_THE_GATE),
    MARKDOWN._replace(help=f"{MARKDOWN.help}; without FILE: on stdout", nargs="?", const=STDOUT),
)


def run(args: argparse.Namespace) -> int:
    to_files = check_sharing(args)
    if args.fail_below is not None:
        return _gate(args)
    before, after = (_titled(_side(word), to_files) for word in (args.before, args.after))
    comparison = compare(before, after)
    if to_files:
        share(args, comparison_document(comparison, before, after))
    else:
        output.show_result(args, comparison, lambda: comparison_report(comparison, args.all))
    return OK


def _gate(args: argparse.Namespace) -> int:
    base, new = _sides(args.before), _sides(args.after)
    try:
        gate = judge(base, new, args.fail_below)
    except GateError as error:
        raise UsageError(str(error)) from None
    gate.labels = list(
        dict.fromkeys(label for side in (*base, *new) for label in device_kinds(side.alone))
    )
    if args.markdown is not None:
        write_or_print(args.markdown, parts_markdown(gate_report(gate)) + "\n")
    else:
        output.show_result(args, gate, lambda: gate_report(gate))
    if gate.verdict == "undecided" and not args.undecided_fails:
        return UNDECIDED
    return OK if gate.verdict == "no regression" else FAILED


def _sides(word: str) -> list[MeasuredRun]:
    """The runs of each file of a folder, by name; or of the one file that `word` names (see
    `_runs`). Raises UsageError."""
    if not os.path.isdir(word):
        return _runs(word)
    try:
        files = sorted(
            path
            for path in Path(word).iterdir()
            if path.suffix in SUFFIXES and not path.name.startswith(".")
        )
    except OSError as error:
        raise UsageError(f"{word}: cannot be read: {error.strerror}") from None
    if not files:
        raise UsageError(f"{word}: this folder has no snapshot (FILE.json)")
    for path in files:
        if path.exists() and not path.is_file():  # nobody has named this pipe
            raise UsageError(f"{path}: cannot be read: not a regular file")
    return _once([side for path in files for side in _runs(str(path))])


def _once(sides: list[MeasuredRun]) -> list[MeasuredRun]:
    """The sides without a second one of the same run of another client: AIPerf writes two files for
    a run, and each names it."""
    kept: dict[object, MeasuredRun] = {}
    for number, side in enumerate(sides):
        run = side.run
        same = (
            (run.client, run.started, run.duration_s, run.summary.requests)
            if run.client and run.started
            else number
        )
        kept.setdefault(same, side)
    return list(kept.values())


def _runs(word: str) -> list[MeasuredRun]:
    """The run that `FILE[#RUN]` names. Without a number: the last run of a snapshot; of a result
    file of another client, the last run and the runs before it that had the same load. Raises
    UsageError."""
    side = _side(word)
    if not side.run.client or _file(word)[1]:
        return [side]
    alike = [run for run in side.session.runs if not unlike(run, side.run)]
    return [
        MeasuredRun(visible(f"{word}#{run.id}") if len(alike) > 1 else side.name, run, side.session)
        for run in alike
    ]


def _file(word: str) -> tuple[str, str]:
    """`FILE` and `RUN` of `FILE[#RUN]`."""
    file, _, number = (
        word.rpartition("#") if "#" in word and not os.path.exists(word) else (word, "", "")
    )
    return file, number


def _side(word: str) -> MeasuredRun:
    """The run that `FILE[#RUN]` names, and its session. Without a number: the last run. Raises
    UsageError."""
    file, number = _file(word)
    if os.path.isdir(file):
        raise UsageError(f"{file}: a folder goes with --fail-below; without it, name a snapshot")
    snapshot = read_measured(Path(file))
    if not snapshot.runs:
        raise UsageError(f"{file}: this snapshot has no run")
    ids = [run.id for run in snapshot.runs]
    if number and number not in ids:
        raise UsageError(f"{word}: there is no such run; the runs are {', '.join(ids)}")
    return MeasuredRun(
        visible(word), snapshot.runs[ids.index(number)] if number else snapshot.runs[-1], snapshot
    )


def _titled(side: MeasuredRun, shared: bool) -> MeasuredRun:
    """The run with the name `before.json#1 train-gpt on cpu`. `shared`: without the folder."""
    file = _file(side.name)[0]
    return side._replace(
        name=(
            f"{Path(file).name if shared else file}#{side.run.id} {side.run.scenario}"
            f" {side.run.place}"
        )
    )
