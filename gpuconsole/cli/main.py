"""`gpuconsole`: parses the command line and runs one command. Exit codes: 0 ok, 1 the workload failed, 2 bad usage."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from gpuconsole import __version__

COMMANDS = tuple(
    sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem not in ("main", "common", "console", "headless"))
)

EXAMPLES = """examples:
  gpuconsole                                      the console: devices, scenario picker
  gpuconsole run data-starved                     one scenario on the screen
  gpuconsole run data-starved --headless --duration 60 --apply-top --snapshot out.json
  gpuconsole replay session.jsonl                 a recorded session on the same screen
  gpuconsole doctor                               what works on this machine, and why not
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuconsole",
        description="Why is this workload slow, and what makes it faster? Run it, see where time goes, apply a fix live, prove that it helped.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpuconsole {__version__}")
    from gpuconsole.cli.common import add_console_options

    add_console_options(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in COMMANDS:
        importlib.import_module(f"gpuconsole.cli.{name}").add(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    from gpuconsole.cli.common import UsageError

    args = build_parser().parse_args(argv)
    if args.command is None:
        from gpuconsole.cli.console import run_console

        args.handler = run_console
    try:
        return int(args.handler(args))
    except UsageError as error:
        print(f"gpuconsole: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
