"""The parser of the command line. Every file in a group folder of `cli/commands/` is a command; there is no other registration."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import re
from collections.abc import Collection
from typing import Any, NoReturn

from gpuconsole import __version__
from gpuconsole.cli import commands
from gpuconsole.cli.options.console import add_console_options
from gpuconsole.model.knobs.knob import nearest


def find_commands() -> dict[str, str]:
    """The module of every command by the command's file name. A command is a file in a group folder of `cli/commands/`; the package
    may be a folder or a zip file."""
    found = {}
    for group in pkgutil.iter_modules(commands.__path__):
        folders = [os.path.join(folder, group.name) for folder in commands.__path__]
        for command in pkgutil.iter_modules(folders):
            found[command.name] = f"{commands.__name__}.{group.name}.{command.name}"
    return found


TAKE_JOBS = ("run", "sweep", "tune")
COMMANDS: dict[str, str] = find_commands()
"""The module of every command, by file name. On the command line, write `-` for `_`."""

DESCRIPTION = "Why is this workload slow, and what makes it faster? Run it, see where time goes, apply a fix live, prove that it helped."
EXAMPLES = """examples:
  gpuconsole                                      the console: devices, scenario picker
  gpuconsole run -- python train.py               your own training job, without a changed line
  gpuconsole run data-starved                     one scenario on the screen
  gpuconsole run data-starved --headless --duration 60 --apply-top --snapshot out.json
  gpuconsole replay session.jsonl                 a recorded session on the same screen
  gpuconsole calibrate                            measure once what this machine reaches; later sessions compare with it
  gpuconsole doctor                               what works on this machine, and why not

exit codes:
  0 ok, 1 the workload failed, 2 bad usage
  Ctrl-C ends a command in good order. The command prints and writes what was measured, and its exit code is 0 or 1 as usual.
  A command that has no result when it is interrupted exits with code 130.
"""


def build_parser(chosen: Collection[str] = COMMANDS, parser_class: type[argparse.ArgumentParser] | None = None) -> argparse.ArgumentParser:
    """A parser for the commands `chosen`. Imports the file of each of these commands."""
    parser = (parser_class or argparse.ArgumentParser)(
        prog="gpuconsole", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"gpuconsole {__version__}")
    add_console_options(parser)
    added = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in chosen:
        importlib.import_module(COMMANDS[name]).add(added)
    return parser


class NotUnderstood(Exception):
    """The command line has a mistake."""


class _Quiet(argparse.ArgumentParser):
    """Raises NotUnderstood on a mistake."""

    def error(self, message: str) -> NoReturn:
        raise NotUnderstood


class _OneLine(argparse.ArgumentParser):
    """Prints a mistake as one line and exits with code 2. `made` lists the parsers of this class, a command's own parser last."""

    made: list[argparse.ArgumentParser] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made.append(self)

    def error(self, message: str) -> NoReturn:
        command = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(", message)
        if command is not None:
            known = [name.replace("_", "-") for name in COMMANDS]
            message = f"there is no command {command[1]!r}{nearest(command[1], known)}"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line. Exits with code 0 after help, and with code 2 and one line on bad usage.

    The parser has only the commands that `words` name, because importing all commands takes time. For help, it has all.
    """
    words, job = split_job(words)
    if {"-h", "--help"} & set(words):
        return build_parser().parse_args(words)
    named = [name for name in COMMANDS if name.replace("_", "-") in words]
    try:
        return build_parser(named, _Quiet).parse_args(words, argparse.Namespace(job=job))
    except NotUnderstood:
        _explain(words, named)


def split_job(words: list[str]) -> tuple[list[str], list[str]]:
    """The words for this program, and the user's own command after `--`. Only the commands TAKE_JOBS take one."""
    at = words.index("--") if "--" in words else len(words)
    if not set(TAKE_JOBS) & set(words[:at]):
        return words, []
    return words[:at], words[at + 1 :]


def _explain(words: list[str], named: list[str]) -> NoReturn:
    """Exit with one line about the mistake in `words`. For an unknown option or command, the line suggests the nearest match."""
    _OneLine.made.clear()
    parser = build_parser(named, _OneLine)
    last = _OneLine.made[-1]
    options = {option for made in _OneLine.made for option in made._option_string_actions}
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and not any(option.startswith(name) for option in options):
            last.error(f"there is no option {name!r}{nearest(name, options)}")
    _, unknown = parser.parse_known_args(words)
    hint = "; a command of your own goes after --" if set(TAKE_JOBS) & set(words) else ""
    last.error(f"unexpected argument {unknown[0]!r}{hint}")
