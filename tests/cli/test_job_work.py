"""What a command does with the user's own job: the settings of a sweep that starts the command
again."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from gpuconsole.cli import job_work
from gpuconsole.engine.children.job import JobCommand
from gpuconsole.model.experiments import Sweep
from gpuconsole.model.job import parse_restart_knob
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.knob import Value
from gpuconsole.model.machine import Device


class NoEngine:
    """Stands in for the engine: a sweep by restarts asks it for the device only."""

    def device(self) -> Device:
        return Device("cpu", "")


def swept(
    monkeypatch: pytest.MonkeyPatch, command: str, vary: dict[str, list[Value]], *mapped: str
) -> tuple[Sweep, list[str]]:
    """The sweep that `command` would get, and the command line of each setting. Nothing is
    started."""
    planned: list[tuple[Sweep, list[str]]] = []

    async def plan(sweep: Sweep, commands: Sequence[JobCommand], *rest: Any) -> None:
        planned.append((sweep, [shlex.join(command.words) for command in commands]))

    @contextlib.asynccontextmanager
    async def session(args: argparse.Namespace) -> AsyncIterator[NoEngine]:
        yield NoEngine()

    monkeypatch.setattr(job_work, "session", session)
    monkeypatch.setattr(job_work, "until_interrupt", lambda work: work)
    monkeypatch.setattr(job_work, "sweep_by_restarts", plan)
    knobs = [parse_restart_knob(text) for text in mapped]
    job_work.sweep_by_restarting(
        argparse.Namespace(
            job=shlex.split(command), restart_knobs=knobs, grid=False, repeat=2, snapshot=None
        ),
        vary,
    )
    return planned[0]


@pytest.mark.parametrize(
    ("command", "base", "first"),
    [
        (
            "t.py --workers 0 --pin false --bs 8",
            {"num_workers": 0, "pin_memory": False, "batch_size": 8},
            "--workers 0 --pin false --bs 8",
        ),
        (
            "t.py",
            {"num_workers": 2, "pin_memory": True, "batch_size": 8},
            "--workers 2 --pin true --bs 8",
        ),
        (
            "t.py --workers many",
            {"num_workers": 2, "pin_memory": True, "batch_size": 8},
            "--workers 2 --pin true --bs 8",
        ),
    ],
)
def test_a_sweep_by_restarts_begins_with_the_values_of_the_command(
    monkeypatch: pytest.MonkeyPatch, command: str, base: Knobs, first: str
) -> None:
    """0 and false are values as well; a value of --vary stands in only where the command names
    none."""
    vary: dict[str, list[Value]] = {
        "num_workers": [2, 4],
        "pin_memory": [True],
        "batch_size": [8, 16],
    }
    sweep, commands = swept(
        monkeypatch,
        command,
        vary,
        "num_workers={--workers}",
        "pin_memory={--pin}",
        "batch_size={--bs}",
    )
    assert sweep.base == base
    assert commands[0] == f"t.py {first}"
    assert sweep.points[0].knobs == base
    assert [point.knobs for point in sweep.points][-1] == {**base, "batch_size": 16}
