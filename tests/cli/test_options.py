"""The rows of the options: their conditions name facts that exist, and their reasons are whole
lines."""

from __future__ import annotations

import importlib

import pytest

from gpuconsole.cli.options import (
    DEMO,
    PRINTING,
    WATCHING_ON_SCREEN,
    Option,
    UsageError,
    check,
    each,
)
from gpuconsole.cli.parser import COMMANDS, parse

FACTS = {
    "job",
    "no job",
    "screen",
    "headless",
    "training",
    "serving",
    "one process",
    "one machine",
    "embedded server",
}
OF_ONE_COMMAND = {"sweep": {"varies nproc", "varies others"}}


def rows(command: str) -> list[Option]:
    return each((*importlib.import_module(COMMANDS[command]).OPTIONS, PRINTING))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_condition_is_made_of_facts(command: str) -> None:
    names = {option.name for other in COMMANDS for option in rows(other)} | {DEMO.name}
    facts = FACTS | OF_ONE_COMMAND.get(command, set()) | names | {f"no {name}" for name in names}
    conditions = {
        condition
        for option in (*rows(command), *WATCHING_ON_SCREEN.options)
        for condition in option.refused
    }
    assert {fact for condition in conditions for fact in condition.split(", ")} <= facts


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_one_row_in_a_command(command: str) -> None:
    names = [option.name for option in rows(command)]
    keys = [option.key for option in rows(command)]
    assert len(set(names)) == len(names) and len(set(keys)) == len(keys)


def test_what_the_scenario_decides_is_refused_once_the_scenario_is_known() -> None:
    args = parse(["run", "serve-chat", "--profile"])
    check(args)
    with pytest.raises(UsageError, match="--profile is for training scenarios"):
        check(args, "serving")
    with pytest.raises(UsageError, match="--profile goes with --headless; on the screen, press f"):
        check(args, "training")


def test_a_reason_names_the_command_and_the_workload() -> None:
    with pytest.raises(
        UsageError,
        match=r"--probe goes with a command of your own: gpuconsole tune -- COMMAND ARGS\.\.\.",
    ):
        parse(["tune", "train-gpt", "--probe"])
    args = parse(["run", "serve-chat", "--headless", "--nnodes", "2"])
    with pytest.raises(
        UsageError, match=r"--nnodes is for scenarios .*; serving\.http runs in one"
    ):
        check(args, "serving", "one process", workload="serving.http")


def test_an_option_of_a_job_is_refused_without_a_job_whatever_stands_beside_it() -> None:
    with pytest.raises(UsageError, match="--restart-knob goes with a command of your own"):
        parse(
            [
                "run",
                "train-gpt",
                "--headless",
                "--save-baseline",
                "--restart-knob",
                "batch_size={--b}",
            ]
        )
