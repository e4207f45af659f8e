"""`gpuconsole scenarios`."""

from __future__ import annotations

import argparse
import sys
import textwrap

from gpuconsole.cli.options.files import to_json
from gpuconsole.cli.options.scenario import scenario
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.engine.catalog import scenarios, user_folder
from gpuconsole.model.knobs.catalogue import CATALOGUE, show
from gpuconsole.model.scenario import Scenario, ScenarioError

EXAMPLES = """examples:
  gpuconsole scenarios
  gpuconsole scenarios data-starved       its knobs with values and allowed values
  gpuconsole scenarios --json
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "scenarios",
        help="list scenarios, or show one",
        description=f"List scenarios, or show one. Your own scenarios are the files {user_folder()}/*.toml; `gpuconsole run` also takes a path.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the scenario to show (default: list all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    if args.name:
        chosen = scenario(args.name)
        print(to_json(chosen) if args.json else details(chosen))
        return 0
    try:
        found, mistakes = scenarios()
    except ScenarioError as error:
        raise UsageError(str(error)) from None
    if args.json:
        print(to_json(list(found.values())))
    else:
        width = max(map(len, found))
        for one in found.values():
            print(f"{one.name:<{width}}  {one.title}" + (f"  [{one.teaches.rule}]" if one.teaches.rule else ""))
    for mistake in mistakes:
        print(f"gpuconsole: {mistake}", file=sys.stderr)
    return 0


def details(chosen: Scenario) -> str:
    """One scenario: summary, what to see, and all knobs."""
    lines = [f"{chosen.name}: {chosen.title}", *textwrap.wrap(chosen.summary, 100), ""]
    if chosen.teaches.see:
        lines += textwrap.wrap(f"What to see: {chosen.teaches.see}", 100)
    if chosen.teaches.rule:
        fix = ", ".join(f"{name}={show(value)}" for name, value in chosen.teaches.fix.items())
        lines.append(f"Rule that fires: {chosen.teaches.rule}" + (f"; fix: {fix}" if fix else ""))
    lines += ["", f"{'knob':<28} {'cpu':<12} {'gpu':<12} {'applies':<8} allowed"]
    cpu, gpu = chosen.knobs_for("cpu"), chosen.knobs_for("gpu")
    for name in chosen.workload.knobs:
        knob = CATALOGUE[name]
        lines.append(f"{name:<28} {show(cpu[name]):<12} {show(gpu[name]):<12} {knob.apply:<8} {knob.allowed()}")
    return "\n".join(lines)
