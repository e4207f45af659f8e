"""`gpuconsole snapshot-schema`."""

from __future__ import annotations

import argparse

from gpuconsole.cli.options.files import to_json
from gpuconsole.model.snapshot import json_schema


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "snapshot-schema", help="print the JSON Schema of snapshots", description="Print the JSON Schema of snapshots."
    )
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    print(to_json(json_schema()))
    return 0
