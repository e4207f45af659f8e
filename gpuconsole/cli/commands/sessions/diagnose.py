"""`gpuconsole diagnose`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.options.files import read_snapshot, to_json, writable
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.models.run import with_figures
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.files import write_whole
from gpuconsole.model.peaks import published_of
from gpuconsole.report.session import run_text


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "diagnose",
        help="apply the rules again to a snapshot",
        description="Apply the rules and models of this version to the data in a snapshot. Unknown fields are kept.",
        epilog="examples:\n  gpuconsole diagnose session.json\n  gpuconsole diagnose session.json --snapshot again.json\n",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a snapshot")
    parser.add_argument("--snapshot", type=Path, metavar="OUT", help="write the snapshot with the new findings and figures")
    parser.add_argument(
        "--json", action="store_true", help="print the snapshot with the new findings and figures, and nothing else on stdout"
    )
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    target = writable(args.snapshot, "--snapshot")
    snapshot, raw = read_snapshot(args.file)
    for run, stored in zip(snapshot.runs, raw["runs"], strict=True):  # type: ignore[call-overload]
        run.findings = evaluate(Case.of(run, run.signals))
        stored["findings"] = msgspec.to_builtins(run.findings)
        figured = with_figures(run, snapshot.environment.devices, snapshot.environment.calibration, published_of)
        stored["figures"] = msgspec.to_builtins(figured.figures)
        stored["attainable"] = msgspec.to_builtins(figured.attainable)
        if not args.json:
            print(run_text(figured, snapshot.trials, output.paint(sys.stdout)))
    if args.json:
        print(to_json(raw))
    if target is not None:
        try:
            write_whole(target, msgspec.json.format(msgspec.json.encode(raw), indent=1) + b"\n")
        except OSError as error:
            raise UsageError(f"{target}: cannot be written: {error.strerror}") from None
    return OK
