"""`gpuconsole snapshot-schema`."""

from __future__ import annotations

import argparse

from gpuconsole.cli.exits import OK
from gpuconsole.cli.options.files import to_json
from gpuconsole.model.snapshot import json_schema

EXAMPLES = """examples:
  gpuconsole snapshot-schema > schema.json
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "snapshot-schema",
        help="print the JSON Schema of snapshots",
        description="Print the JSON Schema of snapshots.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    print(to_json(json_schema()))
    return OK
