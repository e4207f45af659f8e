"""The effect of every knob, measured on the scenarios: docs/knobs.md.

    python -m benchmarks.knobs [--only SCENARIO ...] [--again] [--budget 1500] [--render]

Each row of rows.py is a trial through the real command line, most important first. Results are kept
at once in benchmarks/results/knobs-SCENARIO.json, so that an interrupted benchmark continues;
--again measures rows again. The page is written after every row from all results.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.knobs.measured import Measured, measure
from benchmarks.knobs.page import page
from benchmarks.knobs.rows import Row, rows
from benchmarks.machine import RESULTS, fingerprint
from gpuconsole.host.files import write_whole
from gpuconsole.model.knobs.catalogue import describe_changes

PAGE = Path(__file__).parent.parent.parent / "docs" / "knobs.md"


class Kept(msgspec.Struct):
    """A results file: the rows of one scenario, all made on one machine."""

    machine: dict[str, Any]
    rows: list[Measured]


def path_of(scenario: str) -> Path:
    return RESULTS / f"knobs-{scenario}.json"


def kept(scenario: str) -> Kept | None:
    path = path_of(scenario)
    return msgspec.json.decode(path.read_bytes(), type=Kept) if path.exists() else None


def keep(made: Measured, machine: dict[str, object]) -> None:
    """Keep the row in place of an earlier one; rows of another machine are deleted."""
    before = kept(made.scenario)
    same = before.rows if before is not None and before.machine["cpu"] == machine["cpu"] else []
    found = Kept(machine, [*(one for one in same if one.key != made.key), made])
    write_whole(
        path_of(made.scenario), msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
    )


def render(plan: Sequence[Row]) -> str:
    """Write the page from every results file, scenarios and rows in the order of the plan. Rows
    that are no longer planned are left out."""
    files = {
        name: found for name in dict.fromkeys(row.scenario for row in plan) if (found := kept(name))
    }
    by_key = {one.key: one for found in files.values() for one in found.rows}
    made = {
        name: [by_key[row.key] for row in plan if row.scenario == name and row.key in by_key]
        for name in files
    }
    machines = {words(one.machine) for one in files.values()}
    dates = sorted(one.date for found in files.values() for one in found.rows)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return page(f"{' and '.join(sorted(machines))}, {when}", made, plan)


def words(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['os']}, torch"
        f" {machine['versions']['torch']}"
    )


def say(made: Measured) -> str:
    change = describe_changes(made.changes, made.before or None)
    if made.speedup is None:
        return f"{made.scenario:<20} {change}: {'; '.join(dict.fromkeys(made.words.values()))}"
    speedup = made.speedup
    return (
        f"{made.scenario:<20} {change}: {speedup.estimate:.3f}x [{speedup.low:.3f},"
        f" {speedup.high:.3f}] {made.verdict}, load {made.load:.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", metavar="SCENARIO")
    parser.add_argument("--again", action="store_true", help="also rows that were measured before")
    parser.add_argument(
        "--budget", type=float, default=1500.0, help="begin no further row after so many seconds"
    )
    parser.add_argument("--render", action="store_true", help="measure nothing, write the page")
    args = parser.parse_args()
    plan, machine, begun = rows(), fingerprint(), time.monotonic()
    done = {
        one.key
        for name in {row.scenario for row in plan}
        if (found := kept(name))
        for one in found.rows
    }
    due = [
        row
        for row in plan
        if (not args.only or row.scenario in args.only) and (args.again or row.key not in done)
    ]
    for number, row in enumerate([] if args.render else due):
        if time.monotonic() - begun > args.budget:
            print(f"{len(due) - number} rows left for another time")
            break
        start = time.monotonic()
        made = measure(row)
        keep(made, machine)
        PAGE.write_text(render(plan), encoding="utf-8")
        print(
            f"{datetime.datetime.now():%H:%M:%S} {say(made)}  ({time.monotonic() - start:.0f} s)",
            flush=True,
        )
    PAGE.write_text(render(plan), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
