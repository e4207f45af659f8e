"""`gpuconsole explain`."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK
from gpuconsole.cli.options import JSON, Option, UsageError
from gpuconsole.diagnosis.incident import explain
from gpuconsole.engine.history import read_history
from gpuconsole.report.incident import incident_report
from gpuconsole.wire.recording import RecordingError

HELP = "say what happened at a latency peak"
DESCRIPTION = """Find a latency peak in a recording of a model server, or in a ring of recordings,
and name what changed with it: preemptions, longer prompts, more requests, clocks, restarts, other
processes, ... each with figures; or say that nothing did.

FILE is a recording (--record FILE), or the folder of a ring (--record FOLDER/: the last 24 hours in
less than 50 MB). Times are those of this machine's time zone."""
EXAMPLES = """examples:
  gpuconsole explain day/ --at 03:14    the peak nearest to this time of the last 24 recorded hours
  gpuconsole explain session.jsonl             the highest peak
  gpuconsole explain day/ --at 2026-11-29T03:14:20 --json
"""
OPTIONS = (
    Option("file", "a recording, or the folder of a ring", "FILE", Path),
    Option(
        "--at",
        "the time of the peak: HH:MM, HH:MM:SS, or a date and a time such as 2026-11-29T03:14",
        "TIME",
    ),
    JSON._replace(help="print the answer as JSON, and nothing else on stdout"),
)


def run(args: argparse.Namespace) -> int:
    try:
        history, notes = read_history(args.file)
    except OSError as error:
        raise UsageError(f"{args.file}: cannot be read: {error.strerror}") from None
    except RecordingError as error:
        raise UsageError(str(error)) from None
    if history.begun is None:
        raise UsageError(f"{args.file}: this recording has no reading of a server or a device")
    asked = None if args.at is None else _moment(args.at, history.begun, history.ended)
    incident = explain(history, asked)
    incident.notes = notes
    output.show_result(args, incident, lambda: incident_report(incident))
    return OK


def _moment(words: str, begun: float, ended: float) -> float:
    """The Unix time of `words`: without a date, the last such time in the recorded hours. Raises
    UsageError."""
    last = datetime.datetime.fromtimestamp(ended)
    try:
        if "T" in words or "-" in words:
            moment = datetime.datetime.fromisoformat(words)
        else:
            moment = datetime.datetime.combine(last.date(), datetime.time.fromisoformat(words))
            if moment > last:
                moment -= datetime.timedelta(days=1)
    except ValueError:
        raise UsageError(
            f"--at {words}: must be HH:MM, HH:MM:SS, or a date and a time such as 2026-11-29T03:14"
        ) from None
    if not begun <= moment.timestamp() <= ended:
        recorded = " to ".join(
            datetime.datetime.fromtimestamp(t).isoformat(" ", "seconds") for t in (begun, ended)
        )
        raise UsageError(f"--at {words}: not in the recorded time, {recorded}")
    return moment.timestamp()
