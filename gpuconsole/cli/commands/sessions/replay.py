"""`gpuconsole replay`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.console import use_own_keys
from gpuconsole.cli.exits import OK
from gpuconsole.cli.options import ECO, HEADLESS, JSON, Option, UsageError
from gpuconsole.cli.values import eco, theme
from gpuconsole.engine.recording import Replay
from gpuconsole.model.snapshot import encode
from gpuconsole.report.session import session_text
from gpuconsole.tui.terminal import why_no_terminal
from gpuconsole.wire.recording import RecordingError

HELP = "show a recorded session on the same screen"
DESCRIPTION = "Show a recorded session on the screen, marked as a recording."
EXAMPLES = """examples:
  gpuconsole run data-starved --record session.jsonl
  gpuconsole replay session.jsonl
  gpuconsole replay session.jsonl --speed 4
  gpuconsole replay session.jsonl --headless        print its summary
"""
SPEED = 1.0


def speed(text: str) -> float:
    """A factor, 0 or more. Raises ValueError."""
    try:
        factor = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 <= factor < 1e6:
        raise ValueError(f"{text}: must be 0 or more")
    return factor


ON_SCREEN = {"headless": "goes with the screen, not with --headless or --json"}
OPTIONS = (
    Option("file", "a file of --record", "FILE", Path),
    Option(
        "--speed",
        "speed compared with the original session (default 1); 0: all at once",
        "X",
        speed,
        ON_SCREEN,
    ),
    HEADLESS._replace(help="print the summary of the session instead"),
    JSON._replace(
        help="print the session as a snapshot, and nothing else on stdout (implies --headless)"
    ),
    ECO._replace(refused=ON_SCREEN),
)


def run(args: argparse.Namespace) -> int:
    headless = args.headless or args.json
    try:
        replay = Replay(args.file, 0 if headless else SPEED if args.speed is None else args.speed)
    except OSError as error:
        raise UsageError(f"{args.file}: cannot be read: {error.strerror}") from None
    except RecordingError as error:
        raise UsageError(str(error)) from None
    if headless:
        asyncio.run(replay.open())
        if args.json:
            sys.stdout.buffer.write(encode(replay.snapshot()))
            return OK
        print("recording of", replay.state.wall_clock(replay.state.t0 or 0.0) or "an unknown time")
        print(session_text(replay.snapshot(), output.paint(sys.stdout)))
        return OK
    if why := why_no_terminal():
        raise UsageError(f"{why}; add --headless")
    use_own_keys()
    from gpuconsole.tui.app import run_app

    return run_app(replay, eco=eco(args), theme=theme())
