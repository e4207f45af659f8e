"""`gpuconsole completion`: the script that completes command lines of gpuconsole in a shell."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from gpuconsole.cli.exits import OK
from gpuconsole.cli.options import Option, UsageError, each
from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.engine.catalog import scenarios
from gpuconsole.host.installation import install_command
from gpuconsole.model.knobs.catalogue import CATALOGUE

SHELLS = ("bash", "zsh", "fish")
HELP = "print the completion script of a shell"
DESCRIPTION = """Print the script that completes commands, options, scenarios, settings and rules in
a shell. The names are those of today: after an update of gpuconsole, or with a new scenario of your
own, write the script again. A completion starts no process.

The script is made by shtab, which the extra `completion` installs. Without it this command prints
what to install."""
EXAMPLES = """examples:
  gpuconsole completion bash > ~/.local/share/bash-completion/completions/gpuconsole
  gpuconsole completion zsh > ~/.zfunc/_gpuconsole          with fpath=(~/.zfunc $fpath) in ~/.zshrc
  gpuconsole completion fish > ~/.config/fish/completions/gpuconsole.fish
"""
NO_BLANK = """
_gpuconsole_without_blank() {
  _shtab_gpuconsole "$@"
  if [[ "${COMPREPLY[0]}" == *= ]]; then compopt -o nospace; fi
}
complete -o filenames -F _gpuconsole_without_blank gpuconsole
"""
"""bash: no blank after `batch_size=`. zsh and fish leave it out by themselves."""
OPTIONS = (Option("shell", f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}", "SHELL", choices=SHELLS),)


def run(args: argparse.Namespace) -> int:
    try:
        shtab = importlib.import_module("shtab")
    except ImportError:
        raise UsageError(f"shtab is not installed: {install_command('completion')}") from None
    from gpuconsole.cli.parser import build_parser  # which imports this file

    parser = build_parser()
    add_words(parser, shtab)
    script = str(shtab.complete(parser, shell=args.shell))
    print(script + NO_BLANK if args.shell == "bash" else script)
    return OK


def add_words(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Give every argument of a parser and of its commands the words that it can take: names that
    are known now, files and folders."""
    names = {
        "scenario": sorted(scenarios()[0]),
        "rule": sorted(rule.id for rule in all_rules()),
        "knob": sorted(CATALOGUE),
        "knob=": [f"{name}=" for name in sorted(CATALOGUE)],
    }
    paths = {"file": shtab.FILE, "folder": shtab.DIRECTORY}
    rows = {option.key: option for option in each(parser.get_default("options"))}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = "a command"  # shtab leaves out what has no help
            for command in action.choices.values():
                add_words(command, shtab)
        elif action.dest in rows:
            kind = rows[action.dest].completes or ("file" if action.type is Path else "")
            if kind in names:
                action.choices = names[kind]
            elif kind in paths:
                vars(action)["complete"] = paths[kind]
