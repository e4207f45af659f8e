"""The scenario of a command, and values for its knobs."""

from __future__ import annotations

import argparse
import shutil

from gpuconsole.cli.options.usage import UsageError
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.model.knobs.catalogue import KnobError, Knobs, Value, parse_assignment
from gpuconsole.model.scenario import Scenario, ScenarioError

OWN = "a command of your own goes after --, as in: gpuconsole run -- python train.py"


def add_scenario(parser: argparse.ArgumentParser) -> None:
    """Add the scenario of a command that also takes a command of the user's own after `--`."""
    parser.add_argument(
        "scenario",
        metavar="SCENARIO",
        nargs="?",
        help="a name (see `gpuconsole scenarios`) or the path of a .toml file; or: -- COMMAND ARGS...",
    )


def scenario_of(args: argparse.Namespace) -> str:
    """The scenario on the command line; raises UsageError where there is none."""
    if args.scenario is None:
        raise UsageError(f"{args.command} needs a SCENARIO, or a command of your own: gpuconsole {args.command} -- COMMAND ARGS...")
    return str(args.scenario)


def scenario(name: str) -> Scenario:
    """The scenario with this name or path; raises UsageError."""
    try:
        return find_scenario(name)
    except ScenarioError as error:
        if name.endswith(".py") or shutil.which(name) is not None:
            raise UsageError(f"{name} is no scenario; {OWN}") from None
        raise UsageError(str(error)) from None


def server_of(chosen: Scenario, knobs: Knobs) -> Value:
    """The value of the knob `server` in a serving scenario; empty in a training scenario."""
    return {**chosen.knobs_for("cpu"), **knobs}.get("server", "")


def assignments(texts: list[str], chosen: Scenario) -> Knobs:
    """The values of `KNOB=VALUE` texts (`--set`, `--try`), checked against the scenario's workload; raises UsageError."""
    try:
        return dict(parse_assignment(text, chosen.workload.knobs, chosen.name) for text in texts)
    except KnobError as error:
        raise UsageError(str(error)) from None
