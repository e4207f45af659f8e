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
from gpuconsole.cli.exits import CODES, USAGE
from gpuconsole.cli.options.console import CONSOLE_OPTIONS, add_console_options
from gpuconsole.cli.options.help import HelpFormatter, table, usage
from gpuconsole.cli.options.usage import refuse_given
from gpuconsole.cli.output import add_output_options
from gpuconsole.engine.machine.settings import config_path
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
EXAMPLES = f"""examples:
  gpuconsole                              the console: this machine, and what to press
  gpuconsole run -- python train.py       your own training job
  gpuconsole run data-starved             one scenario on the screen
  gpuconsole run data-starved --headless --duration 60 --apply-top
  gpuconsole doctor                       what works on this machine

exit codes:
{chr(10).join(f"  {code:<4} {meaning}" for code, meaning in CODES.items())}

What you always want: {config_path()}, see docs/commands.md.
"""


TITLES = {"experiments": "work", "reference": "look up", "machine": "machine", "sessions": "files"}
"""The titles of the group folders, in the order of the help."""


def build_parser(chosen: Collection[str] = COMMANDS, parser_class: type[argparse.ArgumentParser] | None = None) -> argparse.ArgumentParser:
    """A parser for the commands `chosen`. Imports the file of each of these commands."""
    parser = (parser_class or argparse.ArgumentParser)(
        prog="gpuconsole", usage="gpuconsole [COMMAND] [options]", epilog=EXAMPLES, formatter_class=HelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"gpuconsole {__version__}")
    parser.add_argument("--demo", action="store_true", default=argparse.SUPPRESS, help="replay a recorded session: find, prove, keep")
    add_output_options(parser)
    add_console_options(parser.add_argument_group("watching devices"), screen=True)
    added = parser.add_subparsers(prog="gpuconsole", metavar="COMMAND", dest="command", help=argparse.SUPPRESS)
    for name in chosen:
        importlib.import_module(COMMANDS[name]).add(added)
        command = added.choices[name.replace("_", "-")]
        command.formatter_class = HelpFormatter
        command.allow_abbrev = False
        command.usage = usage(command, name in TAKE_JOBS)
        add_output_options(command)
    parser.description = (
        f"{DESCRIPTION}\n\n{table(_groups(added))}\n\n`gpuconsole COMMAND --help` has the options and examples of a command."
    )
    return parser


def _groups(added: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The commands with their one line of help, by title of the group. A command without such a line is an old name of another command."""
    lines = {one.dest: one.help or "" for one in added._choices_actions}
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in TITLES.values()}
    for name, module in sorted(COMMANDS.items(), key=lambda one: one[0] not in TAKE_JOBS):
        folder, word = module.split(".")[-2], name.replace("_", "-")
        if word in lines:
            groups.setdefault(TITLES.get(folder, folder), []).append((word, lines[word]))
    return list(groups.items())


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
            message = f"there is no command {command[1]!r}{nearest(command[1], known)}; there are: {', '.join(sorted(known))}"
        self.exit(USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line. Exits with code 0 after help, and with code 2 and one line on bad usage. Raises UsageError.

    The parser has only the commands that `words` name, because importing all commands takes time. For help, it has all.
    """
    words, job = split_job(words)
    if {"-h", "--help"} & set(words):
        return build_parser().parse_args(words)
    named = [name for name in COMMANDS if name.replace("_", "-") in words]
    try:
        parser = build_parser(named, _Quiet)
        args = parser.parse_args(words, argparse.Namespace(job=job))
    except NotUnderstood:
        _explain(words, named)
    _refuse_foreign_options(parser, args)
    return args


def _refuse_foreign_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Raises UsageError for an option before the command that the command does not have."""
    if args.command is None:
        return
    commands = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    own = {one.dest for one in commands.choices[args.command]._actions}
    refuse_given(args, f"has no effect on {args.command}", *(name for name in (*CONSOLE_OPTIONS, "demo") if name not in own))


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
        if name.startswith("--") and name not in options:
            last.error(f"there is no option {name!r}{nearest(name, options)}")
    _, unknown = parser.parse_known_args(words)
    hint = "; a command of your own goes after --" if set(TAKE_JOBS) & set(words) else ""
    if unknown[0].startswith("-"):
        last.error(f"this command has no option {unknown[0].partition('=')[0]!r}")
    last.error(f"unexpected argument {unknown[0]!r}{hint}")
