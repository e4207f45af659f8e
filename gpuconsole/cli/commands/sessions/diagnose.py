"""`gpuconsole diagnose`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.files import read_snapshot_with_unknown, write
from gpuconsole.cli.options import JSON, SNAPSHOT, Option
from gpuconsole.cli.values import writable
from gpuconsole.diagnosis.claims import share_out
from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.models.run import with_figures
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.experiments import with_trials
from gpuconsole.model.peaks import published_of
from gpuconsole.model.run import of_same_job
from gpuconsole.report.session import run_text

HELP = "apply the rules again to a snapshot"
DESCRIPTION = (
    "Apply the rules and models of this version to the data in a snapshot. Unknown fields are kept."
)
EXAMPLES = (
    "examples:\n  gpuconsole diagnose session.json\n  gpuconsole diagnose session.json --snapshot"
    " again.json\n"
)
OPTIONS = (
    Option("file", "a snapshot", "FILE", Path),
    SNAPSHOT._replace(help="write the snapshot with the new findings and numbers", metavar="OUT"),
    JSON._replace(
        help="print the snapshot with the new findings and numbers, and nothing else on stdout"
    ),
)


def run(args: argparse.Namespace) -> int:
    target = writable(args, "--snapshot")
    snapshot, raw = read_snapshot_with_unknown(args.file)
    for run, stored in zip(snapshot.runs, raw["runs"], strict=True):  # type: ignore[call-overload]
        case = Case.of(run, run.signals)
        run.findings = share_out(
            with_trials(evaluate(case), snapshot.trials, run.id, of_same_job(run, snapshot.runs)),
            case,
        )
        figured = with_figures(
            run, snapshot.environment.devices, snapshot.environment.calibration, published_of
        )
        page = (
            "" if args.json else run_text(figured, snapshot.environment, output.paint(sys.stdout))
        )
        stored["findings"] = msgspec.to_builtins(run.findings)
        stored["figures"] = msgspec.to_builtins(figured.figures)
        stored["attainable"] = msgspec.to_builtins(figured.attainable)
        if not args.json:
            print(page)
    if args.json:
        print(output.to_json(raw))
    if target is not None:
        write(target, msgspec.json.format(msgspec.json.encode(raw), indent=1) + b"\n")
    return OK
