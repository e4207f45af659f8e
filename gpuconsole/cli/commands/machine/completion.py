"""`gpuconsole completion`: the script that completes command lines of gpuconsole in a shell."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuconsole.cli.exits import OK
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.engine.catalog import scenarios
from gpuconsole.model.knobs.catalogue import CATALOGUE

SHELLS = ("bash", "zsh", "fish")
DESCRIPTION = """Print the script that completes commands, options, scenarios, knobs and rules in a shell. The names are those of today: after an update of
gpuconsole, or with a new scenario of your own, write the script again. A completion starts no process.

The script is made by shtab: pip install "gpuconsole[completion]"."""
EXAMPLES = """examples:
  gpuconsole completion bash > ~/.local/share/bash-completion/completions/gpuconsole
  gpuconsole completion zsh > ~/.zfunc/_gpuconsole          with fpath=(~/.zfunc $fpath) in ~/.zshrc
  gpuconsole completion fish > ~/.config/fish/completions/gpuconsole.fish
"""
NO_SHTAB = 'shtab is not installed: pip install "gpuconsole[completion]"'
ASSIGNMENTS = ("knobs", "tries", "vary", "assignments", "restart_knobs")
"""Options, by their names in the parser, whose value begins with a knob and `=`."""
FILES = ("FILE", "OUT", "PATH", "CERTIFICATE", "SNAPSHOT", "A.json[#RUN]", "B.json[#RUN]")
NO_BLANK = """
_gpuconsole_without_blank() {
  _shtab_gpuconsole "$@"
  if [[ "${COMPREPLY[0]}" == *= ]]; then compopt -o nospace; fi
}
complete -o filenames -F _gpuconsole_without_blank gpuconsole
"""
"""bash: no blank after `batch_size=`. zsh and fish leave it out by themselves."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "completion",
        help="print the completion script of a shell",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    try:
        shtab = importlib.import_module("shtab")
    except ImportError:
        raise UsageError(NO_SHTAB) from None
    from gpuconsole.cli.parser import build_parser  # which imports this file

    parser = build_parser()
    add_words(parser, shtab)
    script = str(shtab.complete(parser, shell=args.shell))
    print(script + NO_BLANK if args.shell == "bash" else script)
    return OK


def add_words(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Give every argument the words that it can take: names that are known now, files and folders."""
    names, rules = sorted(scenarios()[0]), sorted(rule.id for rule in all_rules())
    knobs = sorted(CATALOGUE)
    for action in actions(parser):
        if action.dest in ("scenario", "name"):
            action.choices = names
        elif action.dest == "id":
            action.choices = rules
        elif action.dest in ASSIGNMENTS:
            action.choices = [f"{name}=" for name in knobs]
        elif action.dest == "only":
            action.choices = knobs
        elif action.metavar == "DIR":
            vars(action)["complete"] = shtab.DIRECTORY
        elif action.type is Path or action.metavar in FILES:
            vars(action)["complete"] = shtab.FILE


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of its commands. The list of the commands is made visible for shtab."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = "a command"
            for command in action.choices.values():
                yield from actions(command)
        else:
            yield action
