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

HELP = "say what happened to a model server at a time"
DESCRIPTION = """Find what went wrong in a recording of a model server, or in a ring of recordings:
latency peaks, outages, standstills (requests run, and no token comes) and restarts. Name what
changed with it: preemptions, longer prompts, more requests, clocks, restarts, other processes, ...
each with figures; or say that nothing did. With --at: what happened at this time, or the nearest to
it. Without: what cost users most, and one line for each of the others.

FILE is a recording (--record FILE), or the folder of a ring (--record FOLDER/: the last 24 hours in
less than 50 MB). Times are those of this machine's time zone."""
EXAMPLES = """examples:
  gpuconsole explain day/ --at 03:14    what happened in this minute of the last 24 recorded hours
  gpuconsole explain session.jsonl             what cost users most, and a list of the others
  gpuconsole explain day/ --at 2026-11-29T03:14:20 --json
  gpuconsole explain day/ --url http://127.0.0.1:8001     one of the servers in the folder
"""
OPTIONS = (
    Option("file", "a recording, or the folder of a ring", "FILE", Path),
    Option("--at", "the time: HH:MM, HH:MM:SS, or a date and a time, 2026-11-29T03:14", "TIME"),
    Option("--url", "the server, where the folder has recordings of several", "URL"),
    JSON._replace(help="print the answer as JSON, and nothing else on stdout"),
)


def run(args: argparse.Namespace) -> int:
    try:
        history, notes = read_history(args.file, args.url)
    except OSError as error:
        raise UsageError(f"{args.file}: cannot be read: {error.strerror}") from None
    except RecordingError as error:
        raise UsageError(str(error)) from None
    if history.begun is None:
        raise UsageError(f"{args.file}: this recording has no reading of a server or a device")
    asked, until = (
        (None, None) if args.at is None else _moment(args.at, history.begun, history.ended)
    )
    incident = explain(history, asked, until)
    incident.notes = notes
    output.show_result(args, incident, lambda: incident_report(incident))
    return OK


def _moment(words: str, begun: float, ended: float) -> tuple[float, float]:
    """The begin and the end, in Unix time, of the second or the minute that `words` name: without a
    date, the last such time in the recorded hours. Raises UsageError."""
    last = datetime.datetime.fromtimestamp(ended)
    clock = words.replace("T", " ").rpartition(" ")[2]
    lasts = 60.0 if clock.count(":") == 1 else 0.0
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
    asked = moment.timestamp()
    if not begun - lasts <= asked <= ended:
        recorded = " to ".join(
            datetime.datetime.fromtimestamp(t).isoformat(" ", "seconds") for t in (begun, ended)
        )
        raise UsageError(f"--at {words}: not in the recorded time, {recorded}")
    return asked, asked + lasts
