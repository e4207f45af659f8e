"""`gpuconsole replay`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from gpuconsole.cli.options.console import add_eco_option, eco
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.engine.replay import Replay
from gpuconsole.report.session import session_text
from gpuconsole.tui.driver.terminal import why_no_terminal
from gpuconsole.wire.recording import RecordingError

DESCRIPTION = "Show a recorded session on the screen, marked as a recording."
EXAMPLES = """examples:
  gpuconsole run data-starved --record session.jsonl
  gpuconsole replay session.jsonl
  gpuconsole replay session.jsonl --speed 4
  gpuconsole replay session.jsonl --headless        print its summary
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "replay",
        help="show a recorded session",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of --record")
    parser.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="speed compared with the original session (default 1); 0: all at once"
    )
    parser.add_argument("--headless", action="store_true", help="print the summary of the session instead")
    add_eco_option(parser)
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    try:
        replay = Replay(args.file, 0 if args.headless else args.speed)
    except OSError as error:
        raise UsageError(f"{args.file}: cannot be read: {error.strerror}") from None
    except RecordingError as error:
        raise UsageError(str(error)) from None
    if args.headless:
        asyncio.run(replay.open())
        print("recording of", replay.state.wall_clock(replay.state.t0 or 0.0))
        print(session_text(replay.snapshot()))
        return 0
    if why := why_no_terminal():
        raise UsageError(f"{why}; add --headless")
    from gpuconsole.tui.app import run_app

    return run_app(replay, eco=eco(args))
