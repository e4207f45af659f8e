"""`gpuconsole snapshot-schema`."""

from __future__ import annotations

import argparse

from gpuconsole.cli.exits import OK
from gpuconsole.cli.output import to_json
from gpuconsole.model.snapshot import json_schema

HELP = "print the JSON Schema of snapshots"
DESCRIPTION = "Print the JSON Schema of snapshots."
EXAMPLES = """examples:
  gpuconsole snapshot-schema > schema.json
"""
OPTIONS = ()


def run(args: argparse.Namespace) -> int:
    print(to_json(json_schema()))
    return OK
