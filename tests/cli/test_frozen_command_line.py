"""The frozen command line: every command, with its arguments and options. A change of this list is
a decision (CONTRIBUTING, "Add a command")."""

from __future__ import annotations

import argparse

from gpuconsole.cli.parser import build_parser

EVERYWHERE = frozenset({"--help", "--quiet", "--color"})
"""Options of all commands."""
SERVER = "--url --model --api-key-env --wait --vllm-python --vllm-args"
LOAD = f"{SERVER} --metrics-url --request-timeout --prompts --slo"
SEVERAL_MACHINES = "--nnodes --rdzv-endpoint --rdzv-id"
WATCHING = "--interval --device --record --price --dcgm --serve --token-file"
OWN_JOB = (
    "--output --restart-knob --store-command --probe --memory --summary --patch --allow-numerics"
    " --allow-loader"
)
FROZEN = {
    "": f"--version --demo {WATCHING} --eco",
    "baselines": "--remove --key --json",
    "calibrate": "--device --json --show --budget",
    "compare": "before after --fail-below --undecided-fails --all --json --html --markdown",
    "completion": "shell",
    "devices": "--long --json --dcgm --timeout",
    "diagnose": "file --snapshot --json",
    "explain": "file --at --url --json",
    "doctor": "--timeout --json",
    "exporter": "--listen --token-file --interval --dcgm",
    "mcp": (
        "scenario --set --snapshot --profile-dir --output --store-command --probe --allow-numerics"
        f" --allow-loader --memory --patch --connect {LOAD} {WATCHING}"
    ),
    "models": "scenario --set --device-name --json",
    "quality": f"scenario --set --lengths --depths --json {SERVER} --device",
    "replay": "file --speed --headless --json --eco",
    "report": "file --patch --html --markdown",
    "rules": "id --json",
    "run": (
        "scenario --set --duration --headless --snapshot --json --apply-top --try --save-baseline"
        " --fail-on-regression --require-valid --profile --profile-dir --log-to --log-command"
        f" --control --eco {OWN_JOB} {SEVERAL_MACHINES} {LOAD} {WATCHING}"
    ),
    "scenarios": "name --json",
    "skill": "",
    "snapshot-schema": "",
    "sweep": (
        "scenario --vary --set --grid --repeat --duration --stop-settled --snapshot --json"
        f" --summary --restart-knob --allow-loader {LOAD} {WATCHING}"
    ),
    "tune": (
        "scenario --set --budget --allow-training-changes --only --resume --verify --measure"
        " --snapshot --json --summary --probe --patch --allow-numerics --allow-loader"
        f" {SEVERAL_MACHINES} {LOAD} {WATCHING}"
    ),
    "watch": (
        "url --duration --headless --snapshot --try --probe --slo --json --model --api-key-env"
        f" --wait --metrics-url --eco {WATCHING}"
    ),
}
"""The words after `gpuconsole` of each command; the console itself is the command without a
name."""


def arguments(parser: argparse.ArgumentParser) -> set[str]:
    """The longest name of each option, and the names of the positional arguments. Commands are left
    out."""
    actions = [
        action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)
    ]
    return {max(action.option_strings, key=len, default=action.dest) for action in actions}


def test_no_command_and_no_option_comes_or_goes_unnoticed() -> None:
    console = build_parser()
    commands = next(
        action.choices
        for action in console._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    parsers = {"": console, **commands}
    assert {name: arguments(parser) - EVERYWHERE for name, parser in parsers.items()} == {
        name: set(words.split()) for name, words in FROZEN.items()
    }
    assert all(arguments(parser) >= EVERYWHERE for parser in parsers.values())
