"""`gpuconsole`: parses the command line and runs one command. Exit codes: 0 ok, 1 the workload failed, 2 bad usage.

Imports wait until they are needed: the console's first picture comes before them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from gpuconsole import __version__

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Collection

_FOLDER = os.path.join(os.path.dirname(__file__), "commands")
COMMANDS: dict[str, str] = {
    file[:-3]: f"gpuconsole.cli.commands.{group}.{file[:-3]}"
    for group in sorted(os.listdir(_FOLDER))
    if os.path.isdir(os.path.join(_FOLDER, group))
    for file in sorted(os.listdir(os.path.join(_FOLDER, group)))
    if file.endswith(".py") and file[0].isalpha()
}
"""Every command by name, with its module. A command registers by being a file in a folder of `cli/commands/`."""

DESCRIPTION = "Why is this workload slow, and what makes it faster? Run it, see where time goes, apply a fix live, prove that it helped."
EXAMPLES = """examples:
  gpuconsole                                      the console: devices, scenario picker
  gpuconsole run data-starved                     one scenario on the screen
  gpuconsole run data-starved --headless --duration 60 --apply-top --snapshot out.json
  gpuconsole replay session.jsonl                 a recorded session on the same screen
  gpuconsole calibrate                            what this machine reaches, measured once and kept as a yardstick
  gpuconsole doctor                               what works on this machine, and why not
"""


def build_parser(commands: Collection[str] = COMMANDS, parser_class: type[ArgumentParser] | None = None) -> ArgumentParser:
    """The parser of these commands; each one's file is imported for it."""
    import argparse
    import importlib

    from gpuconsole.cli.options.console import add_console_options

    parser = (parser_class or argparse.ArgumentParser)(
        prog="gpuconsole", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"gpuconsole {__version__}")
    add_console_options(parser)
    added = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in commands:
        importlib.import_module(COMMANDS[name]).add(added)
    return parser


def parse(words: list[str]) -> Namespace:
    """The command line, read by a parser of only the commands that it names; help and complaints come from that of all commands."""
    import argparse

    class NotUnderstood(Exception):
        pass

    class Quiet(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise NotUnderstood

    class OneLine(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    if not {"-h", "--help"} & set(words):
        named = [name for name in COMMANDS if name.replace("_", "-") in words]
        try:
            return build_parser(named, Quiet).parse_args(words)
        except NotUnderstood:
            pass
    return build_parser(parser_class=OneLine).parse_args(words)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    from gpuconsole.tui import skeleton

    try:
        if not words and skeleton.fits():  # nothing in it can be wrong
            skeleton.paint()
        return _run(words)
    except KeyboardInterrupt:
        return 130
    finally:
        skeleton.restore()


def _run(words: list[str]) -> int:
    from gpuconsole.cli.options.usage import UsageError
    from gpuconsole.tui import skeleton

    args = parse(words)
    if args.command is None:
        from gpuconsole.cli.console import run_console

        args.handler = run_console
    try:
        return int(args.handler(args))
    except UsageError as error:
        skeleton.restore()
        print(f"gpuconsole: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
