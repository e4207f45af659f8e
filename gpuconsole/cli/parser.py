"""The parser of the command line, and its help.

Every file in a group folder of `cli/commands/` is a command; there is no other registration. The
file has HELP (one line), DESCRIPTION, EXAMPLES, OPTIONS, and run(args), which returns the exit
code.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import re
import shlex
import shutil
import textwrap
from collections.abc import Collection, Iterable
from typing import NoReturn

from gpuconsole import __version__
from gpuconsole.cli import commands
from gpuconsole.cli.exits import CODES, USAGE
from gpuconsole.cli.options import (
    DEMO,
    PRINTING,
    WATCHING_ON_SCREEN,
    Group,
    Options,
    UsageError,
    check,
    each,
)
from gpuconsole.host.settings import config_path
from gpuconsole.model.knobs.knob import nearest


def find_commands() -> dict[str, str]:
    """The module of every command by the command's file name. A command is a file in a group folder
    of `cli/commands/`; the package may be a folder or a zip file."""
    modules = {}
    for group in pkgutil.iter_modules(commands.__path__):
        folders = [os.path.join(folder, group.name) for folder in commands.__path__]
        for command in pkgutil.iter_modules(folders):
            modules[command.name] = f"{commands.__name__}.{group.name}.{command.name}"
    return modules


TAKE_JOBS = ("run", "sweep", "tune", "mcp")
COMMANDS: dict[str, str] = find_commands()
"""The module of every command, by file name. On the command line, write `-` for `_`."""

DESCRIPTION = (
    "Why is this job or server slow, and what makes it faster? Run it, see where time goes, apply a"
    " fix live, prove that it helped."
)
EXAMPLES = f"""examples:
  gpuconsole                              the console: this machine, and what to press
  gpuconsole run -- python train.py       your own training job
  gpuconsole run data-starved             one scenario on the screen
  gpuconsole run data-starved --headless --duration 60 --apply-top
  gpuconsole doctor                       what works on this machine

exit codes:
{chr(10).join(f"  {code:<4} {meaning}" for code, meaning in CODES.items())}

Your defaults: {config_path()}, see docs/configuration.md.
"""


TITLES = {"experiments": "work", "reference": "look up", "machine": "machine", "sessions": "files"}
"""The titles of the group folders, in the order of the help."""

GONE = {
    "verify": "gpuconsole tune --verify FILE checks a snapshot of tune",
    "tune --certificate": (
        "gpuconsole tune --snapshot FILE writes what was proven, and gpuconsole tune --verify FILE"
        " checks it"
    ),
    "tune --headless": "tune never opens the screen",
    "sweep --headless": "sweep never opens the screen",
    "watch --advise": "the findings of gpuconsole watch name the flag of the server",
    "scenarios --check": "gpuconsole scenarios NAME shows the settings by the size of a GPU",
    "explain --restart": "gpuconsole compare BEFORE AFTER compares the snapshots of two runs",
}
"""Commands that gpuconsole had, options with the command that had them, and what to use."""

WIDEST = 110
REMARK = re.compile(r"(\s+\S.*?)\s{2,}(\S.*)")
"""An example and the remark after it."""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs. Lines that begin with a blank stay lines: examples and tables."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)
        self._width = min(self._width, WIDEST)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(fitted(text, width))


def fitted(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` cells, if its argv allow that."""
    lines: list[str] = []
    paragraph: list[str] = []

    def end_paragraph() -> None:
        lines.extend(
            textwrap.wrap(
                " ".join(paragraph), width, break_long_words=False, break_on_hyphens=False
            )
        )
        paragraph.clear()

    for line in text.strip("\n").splitlines():
        if line and not line.startswith(" "):
            paragraph.append(line)
            continue
        end_paragraph()
        lines += example(line, width)
    end_paragraph()
    return lines


def example(line: str, width: int) -> list[str]:
    """A line that begins with a blank. If it is too long, its remark stands below it, and a long
    command continues after a backslash."""
    if len(line) <= width:
        return [line]
    parts = REMARK.fullmatch(line)
    command, remark = (parts[1], parts[2]) if parts else (line, "")
    indent = " " * (len(command) - len(command.lstrip()))
    rows = textwrap.wrap(
        command.strip(), width - len(indent) - 6, break_long_words=False, break_on_hyphens=False
    )
    rows = [f"{indent}{'    ' if number else ''}{row}" for number, row in enumerate(rows)]
    rows = [f"{row} \\" for row in rows[:-1]] + rows[-1:]
    below = f"{indent}      "
    return rows + textwrap.wrap(
        remark, width, initial_indent=below, subsequent_indent=below, break_long_words=False
    )


def usage(parser: argparse.ArgumentParser, takes_job: bool) -> str:
    """The usage of a command: its arguments, without the names of all options."""
    arguments = [
        f"[{action.metavar}]"
        if action.nargs == "?" and not takes_job
        else str(action.metavar or action.dest)
        for action in parser._get_positional_actions()
    ]
    first = " ".join([parser.prog, *arguments, "[options]"])
    return f"{first}\n       {parser.prog} [options] -- COMMAND ARGS..." if takes_job else first


def table(groups: Iterable[tuple[str, list[tuple[str, str]]]]) -> str:
    """The commands with one line each, by group."""
    blocks = [
        "\n".join([f"{title}:", *(f"  {name:<18} {line}" for name, line in rows)])
        for title, rows in groups
        if rows
    ]
    return "\n\n".join(blocks)


class Mistake(Exception):
    """The command line has a mistake. `parser`: the parser that found it."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


class CommandParser(argparse.ArgumentParser):
    """Raises Mistake."""

    def error(self, message: str) -> NoReturn:
        raise Mistake(self, message)


def build_parser(chosen: Collection[str] = COMMANDS) -> CommandParser:
    """A parser for the commands `chosen`. Imports the file of each of these commands."""
    parser = CommandParser(
        prog="gpuconsole",
        usage="gpuconsole [COMMAND] [options]",
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpuconsole {__version__}")
    add_options(parser, (DEMO, PRINTING, WATCHING_ON_SCREEN))
    added = parser.add_subparsers(
        prog="gpuconsole", metavar="COMMAND", dest="command", help=argparse.SUPPRESS
    )
    for name in chosen:
        module = importlib.import_module(COMMANDS[name])
        command = added.add_parser(
            written(name),
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=module.EXAMPLES,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        add_options(command, (*module.OPTIONS, PRINTING))
        command.usage = usage(command, name in TAKE_JOBS)
        command.set_defaults(handler=module.run)
    parser.description = (
        f"{DESCRIPTION}\n\n{table(_groups(added))}\n\n"
        "`gpuconsole COMMAND --help` has the options and examples of a command."
    )
    return parser


def written(name: str) -> str:
    """The name of a command on the command line."""
    return name.replace("_", "-")


def add_options(parser: argparse.ArgumentParser, options: Options) -> None:
    """Add the options to a parser. The parsed command line has them in `options`."""
    for part in options:
        if isinstance(part, Group):
            group = parser.add_argument_group(part.title)
            for option in part.options:
                option.add_to(group)
        else:
            part.add_to(parser)
    parser.set_defaults(options=options)


def _groups(
    added: argparse._SubParsersAction[CommandParser],
) -> list[tuple[str, list[tuple[str, str]]]]:
    """The commands with their one line of help, by title of the group."""
    lines = {action.dest: action.help or "" for action in added._choices_actions}
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in TITLES.values()}
    for name in sorted(COMMANDS, key=lambda name: name not in TAKE_JOBS):
        folder = COMMANDS[name].split(".")[-2]
        if written(name) in lines:
            groups.setdefault(TITLES.get(folder, folder), []).append(
                (written(name), lines[written(name)])
            )
    return list(groups.items())


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line. Exits with code 0 after help, and with code 2 and one line on bad
    usage. Raises UsageError.

    The parser has only the commands that `argv` name, because importing all commands takes time.
    For help, it has all.
    """
    argv, job = split_job(argv)
    parser = build_parser(
        COMMANDS
        if {"-h", "--help"} & set(argv)
        else [name for name in COMMANDS if written(name) in argv]
    )
    try:
        args, unknown = parser.parse_known_args(argv, argparse.Namespace(job=job))
    except Mistake as mistake:
        _explain(parser, argv, mistake=mistake)
    if unknown:
        _explain(parser, argv, unknown[0])
    _refuse_foreign_options(args)
    check(args)
    return args


def _refuse_foreign_options(args: argparse.Namespace) -> None:
    """Raises UsageError for an option before the command that the command does not have."""
    for option in (*WATCHING_ON_SCREEN.options, DEMO):
        if (
            args.command is not None
            and option.given(args)
            and option.name not in [own.name for own in each(args.options)]
        ):
            raise UsageError(f"{option.name} has no effect on {args.command}")


def split_job(argv: list[str]) -> tuple[list[str], list[str]]:
    """The arguments for this program, and those of the user's own command after `--`. Only the
    commands TAKE_JOBS take one."""
    at = argv.index("--") if "--" in argv else len(argv)
    if not set(TAKE_JOBS) & set(argv[:at]):
        return argv, []
    return argv[:at], argv[at + 1 :]


def _explain(
    parser: CommandParser, argv: list[str], unknown: str = "", mistake: Mistake | None = None
) -> NoReturn:
    """Exit with one line about `mistake`, or about the argument `unknown`. The line suggests the
    option or command that is nearest."""
    commands = next(
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    if "--" in argv:  # split_job has left it, so none of TAKE_JOBS is there
        _explain_job(parser, argv)
    # the options belong to that program
    if argv and argv[0] not in commands and is_program(argv[0]):
        _no_command(parser, argv[0], argv)
    parsers: list[argparse.ArgumentParser] = [parser, *commands.values()]
    options = {option for each_parser in parsers for option in each_parser._option_string_actions}
    command_word = next((text for text in argv if text in commands or text in GONE), "")
    for name in (text.partition("=")[0] for text in argv):
        gone = name if name == command_word else f"{command_word} {name}"
        if gone in GONE:
            _exit(parsers[-1], f"{name} is gone: {GONE[gone]}")
        if name.startswith("--") and name not in options:
            _exit(parsers[-1], f"there is no option {name!r}{nearest(name, options)}")
    if unknown.startswith("-"):
        _exit(parsers[-1], f"this command has no option {unknown.partition('=')[0]!r}")
    if mistake is None:
        own = argv[argv.index("run") + 1 :] if "run" in argv else []
        example = f", as in: {job_line(own)}" if own and is_program(own[0]) else ""
        hint = (
            f"; a command of your own goes after --{example}" if set(TAKE_JOBS) & set(argv) else ""
        )
        _exit(parsers[-1], f"unexpected argument {unknown!r}{hint}")
    if command := re.match(r"argument COMMAND: invalid choice: '(.*?)' \(", str(mistake)):
        _no_command(
            parser, command[1], argv[argv.index(command[1]) :] if command[1] in argv else []
        )
    _exit(mistake.parser, str(mistake))


def _explain_job(parser: CommandParser, argv: list[str]) -> NoReturn:
    """Exit with one line about a command of the user's own after a `--` that has no `run` before
    it."""
    at = argv.index("--")
    word = next((word for word in argv[:at] if not word.startswith("-")), "")
    if word in (written(name) for name in COMMANDS):
        _exit(parser, f"{word} takes no command after --; {', '.join(TAKE_JOBS)} take one")
    if word:
        _no_command(parser, word, [])
    _exit(
        parser,
        f"to run a command of your own: {job_line(argv[at + 1 :] or ['COMMAND', 'ARGS...'])}",
    )


def _no_command(parser: CommandParser, word: str, words: list[str]) -> NoReturn:
    """Exit with one line: the nearest command, or how to run `words` where they look like a command
    of the user's own."""
    names = [written(name) for name in COMMANDS]
    if words and is_program(word):
        _exit(
            parser, f"there is no command {word!r}; to run a command of your own: {job_line(words)}"
        )
    _exit(
        parser,
        (
            f"there is no command {word!r}{nearest(word, names)}; there are:"
            f" {', '.join(sorted(names))}"
        ),
    )


def is_program(word: str) -> bool:
    """Whether `word` is a Python file, or what a shell would run."""
    return word.endswith(".py") or shutil.which(word) is not None


def job_line(words: list[str]) -> str:
    """`gpuconsole run -- python train.py` for the words of a command, or for a Python file."""
    return (
        f"gpuconsole run -- {shlex.join(['python', *words] if words[0].endswith('.py') else words)}"
    )


def _exit(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    parser.exit(USAGE, f"{parser.prog}: {message} (see {parser.prog} --help)\n")
