"""Sweeps that start the command again. The job is a stand-in that makes steps at once."""

from __future__ import annotations

import asyncio

import pytest

from gpuconsole.engine.children.job import JobCommand
from gpuconsole.experiments import restart
from gpuconsole.experiments.restart import sweep_by_restarts
from gpuconsole.model.experiments import Sweep, SweepPoint
from gpuconsole.model.run import PHASES, Step
from gpuconsole.wire.events import Started

STEP_S, DELAY_S, SAMPLES = 0.1, 0.05, 4
READ_EVERY = 4
"""The agent reads the run-queue delay on one step of so many, and on each step of a block with an
arm."""


class Handle:
    """The job's side: a message of steps for each wait, like those of the agent."""

    def __init__(self, steps: list[Step]) -> None:
        self.trial_steps: list[Step] = []
        self._steps, self._arm = steps, 0

    def resume(self, arm: int) -> None:
        self._arm = arm

    async def next_steps(self) -> None:
        for _ in range(3):
            index = len(self._steps)
            phases = (STEP_S, *[0.0] * (len(PHASES) - 1))
            delays = (DELAY_S, *[0.0] * (len(PHASES) - 1))
            read = self._arm or index % READ_EVERY == 0
            step = Step(
                index,
                index * STEP_S,
                STEP_S,
                SAMPLES,
                0,
                phases,
                delays if read else None,
                arm=self._arm,
            )
            self._steps.append(step)
            if self._arm:
                self.trial_steps.append(step)


class SteadyStart:
    """A start of the command that is steady after some steps."""

    def __init__(self, command: JobCommand) -> None:
        self.steps: list[Step] = []
        self.started: Started | None = None
        self.handle = Handle(self.steps)

    async def until_steady(self) -> None:
        for _ in range(4):
            await self.handle.next_steps()

    async def end(self) -> None: ...


@pytest.mark.parametrize(
    ("clock", "rate"),
    [("wall", SAMPLES / STEP_S), ("contention_free", SAMPLES / (STEP_S - DELAY_S))],
)
def test_the_delay_is_left_out_of_each_step_of_a_sweep_by_restarts(
    monkeypatch: pytest.MonkeyPatch, clock: str, rate: float
) -> None:
    """The agent reads the delay on a few steps only, unless it is told that the steps are those of
    an experiment."""
    monkeypatch.setattr(restart, "CommandStart", SteadyStart)
    points = [SweepPoint({"batch_size": size}) for size in (4, 8)]
    sweep = Sweep(
        "t.py",
        "cpu",
        "samples/s",
        {"batch_size": 4},
        points,
        2,
        "wall" if clock == "wall" else "contention_free",
    )
    commands = [JobCommand(("t.py", str(point.knobs["batch_size"]))) for point in points]
    asyncio.run(sweep_by_restarts(sweep, commands, lambda words: None, lambda sweep: None))
    assert [point.rates for point in sweep.points] == [pytest.approx([rate, rate])] * 2
