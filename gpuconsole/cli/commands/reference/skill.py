"""`gpuconsole skill`."""

from __future__ import annotations

import argparse
from importlib.resources import files

from gpuconsole.cli.exits import OK

HELP = "print the skill file for agents (SKILL.md)"
DESCRIPTION = (
    "Print the skill file for agents: how to work with the tools of `gpuconsole mcp`, from the"
    " first reading to the patch."
)
EXAMPLES = """examples:
  gpuconsole skill > SKILL.md
  gpuconsole skill > .claude/skills/gpuconsole/SKILL.md
"""
OPTIONS = ()


def run(args: argparse.Namespace) -> int:
    print(files("gpuconsole").joinpath("data", "SKILL.md").read_text(encoding="utf-8"), end="")
    return OK
