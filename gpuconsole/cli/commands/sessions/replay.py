"""`gpuconsole replay`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.console import use_own_keys
from gpuconsole.cli.exits import OK
from gpuconsole.cli.options.console import add_eco_option, eco, theme
from gpuconsole.cli.options.usage import UsageError, refuse_given
from gpuconsole.engine.recording import Replay
from gpuconsole.model.snapshot import encode
from gpuconsole.report.session import session_text
from gpuconsole.tui.terminal import why_no_terminal
from gpuconsole.wire.recording import RecordingError

DESCRIPTION = "Show a recorded session on the screen, marked as a recording."
EXAMPLES = """examples:
  gpuconsole run data-starved --record session.jsonl
  gpuconsole replay session.jsonl
  gpuconsole replay session.jsonl --speed 4
  gpuconsole replay session.jsonl --headless        print its summary
"""


SPEED = 1.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "replay",
        help="show a recorded session on the same screen",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of --record")
    parser.add_argument("--speed", type=speed, metavar="X", help="speed compared with the original session (default 1); 0: all at once")
    parser.add_argument("--headless", action="store_true", help="print the summary of the session instead")
    parser.add_argument(
        "--json", action="store_true", help="print the session as a snapshot, and nothing else on stdout (implies --headless)"
    )
    add_eco_option(parser)
    parser.set_defaults(handler=run)


def speed(text: str) -> float:
    """A factor, 0 or more, for argparse."""
    try:
        factor = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= factor < 1e6:
        raise argparse.ArgumentTypeError(f"{text}: must be 0 or more")
    return factor


def run(args: argparse.Namespace) -> int:
    headless = args.headless or args.json
    if headless:
        refuse_given(args, "goes with the screen, not with --headless or --json", "speed", "eco")
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
        print("recording of", replay.state.wall_clock(replay.state.t0 or 0.0))
        print(session_text(replay.snapshot(), output.paint(sys.stdout)))
        return OK
    if why := why_no_terminal():
        raise UsageError(f"{why}; add --headless")
    use_own_keys()
    from gpuconsole.tui.app import run_app

    return run_app(replay, eco=eco(args), theme=theme())
