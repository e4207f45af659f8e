"""Trials and sweeps that start the user's command again for each setting in turn, for settings that
are flags of the command."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import statistics
import time
from collections.abc import Callable, Sequence

from gpuconsole.engine.children.job import JobCommand
from gpuconsole.engine.children.signals import kill_leftovers
from gpuconsole.engine.children.worker import WorkerGone, WorkerHandle
from gpuconsole.experiments.statistics import BASELINE, CHANGED, BlockPlan
from gpuconsole.experiments.steps import Lengths, NextBlock
from gpuconsole.experiments.sweep import fill
from gpuconsole.experiments.trial import TrialFailed
from gpuconsole.model.experiments import Method, Sweep
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.run import COUNTS, Step
from gpuconsole.session.figures.breakdown import STEADY_STEPS, steady_from
from gpuconsole.wire.events import AnyEvent, Started, Steps

STEADY_S = 60.0
"""Seconds of steps after which a side is measured even if its step time still has a trend."""
START_S = 600.0
"""Seconds until the first step of a command."""
END_S = 10.0
"""Seconds between SIGTERM and SIGKILL at the end of a side."""


class CommandStart:
    """One start of the command, with its steps until it is steady."""

    def __init__(self, command: JobCommand) -> None:
        """Raises TrialFailed where the command can have no private folder."""
        try:
            self.handle = WorkerHandle(self._on_event, lambda worker, code: None, job=command)
        except OSError as error:
            raise TrialFailed(f"{command.name} could not be started: {error.strerror}") from None
        self.steps: list[Step] = []
        self.started: Started | None = None

    async def until_steady(self) -> None:
        """Start the command and wait until its steps are steady. Raises TrialFailed."""
        name = self.handle.job.command.name if self.handle.job is not None else ""
        try:
            await self.handle.launch()
            async with asyncio.timeout(START_S):
                await self.handle.next_steps()
            begun = time.monotonic()
            while steady_from(self.steps) is None and time.monotonic() - begun < STEADY_S:
                await self.handle.next_steps()
        except TimeoutError:
            raise TrialFailed(f"{name} made no step within {START_S:.0f} s") from None
        except OSError as error:
            raise TrialFailed(f"{name} could not be started: {error.strerror}") from None
        except WorkerGone:
            job = self.handle.job
            why = (
                job.ending(job.returncode)[1]
                if job is not None and job.returncode is not None
                else "the job ended"
            )
            raise TrialFailed(
                f"{name}: {why or 'the job ended before its steps were steady'}"
            ) from None

    async def end(self) -> None:
        """End the command and all its processes: SIGTERM, then SIGKILL."""
        job = self.handle.job
        if job is None or job.pid is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            job.signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(job.exited.wait(), END_S)
                break
        kill_leftovers(job.pid)

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, Started):
            self.started = self.started or event
        elif isinstance(event, Steps) and self.handle.leads(event.rank):
            self.steps += [step for step in event.steps if step.kind == COUNTS]


class RestartVariants:
    """The sides of a trial: two commands, of which one runs at a time. Two blocks of one side in a
    row share a start."""

    method: Method = "restarts ABBA"

    def __init__(self, before: JobCommand, after: JobCommand, say: Callable[[str], None]) -> None:
        """`say` receives a line for each start."""
        self._commands = {BASELINE: before, CHANGED: after}
        self._starts: dict[int, CommandStart] = {}
        self._running: int | None = None
        self._say, self._count = say, 0

    async def switch_to(self, arm: int) -> None:
        if self._running != arm:
            await self.close()
            self._count += 1
            self._say(f"start {self._count}: {'without' if arm == BASELINE else 'with'} the change")
            start = self._starts[arm] = CommandStart(self._commands[arm])
            self._running = arm
            await start.until_steady()
        self._starts[arm].handle.trial_steps.clear()
        self._starts[arm].handle.resume(arm)

    def worker(self, arm: int) -> WorkerHandle:
        return self._starts[arm].handle

    def started(self, arm: int) -> CommandStart:
        return self._starts[arm]

    async def close(self) -> None:
        """End the command that runs."""
        if self._running is not None:
            running, self._running = self._running, None
            await self._starts[running].end()


async def sweep_by_restarts(
    sweep: Sweep,
    commands: Sequence[JobCommand],
    say: Callable[[str], None],
    on_update: Callable[[Sweep], None],
) -> None:
    """Fill `sweep`: `commands[n]` is started for a block of point n. A point whose command fails
    has the error."""
    starts = itertools.count(1)

    async def block(index: int, stretch: float) -> list[Step]:
        knobs = sweep.points[index].knobs
        say(f"start {next(starts)}: {describe_changes(knobs)}")
        start = CommandStart(commands[index])
        try:
            await start.until_steady()
            return await _block_of(start, knobs, stretch)
        finally:
            await start.end()

    await fill(sweep, block, on_update)


async def _block_of(start: CommandStart, point: Knobs, stretch: float) -> list[Step]:
    """The steps of one block. Raises WorkerGone.

    They have an arm, although there is one side only: the agent reads the run-queue delay on every
    such step, and on few of the others.
    """
    knobs: Knobs = {**(start.started.knobs if start.started is not None else {}), **point}
    plan, walls = (
        BlockPlan(knobs, point, of_job=True),
        [step.wall_s for step in start.steps[-STEADY_STEPS:]],
    )
    block = NextBlock(plan, Lengths(statistics.fmean(walls) if walls else None), BASELINE, stretch)
    start.handle.trial_steps.clear()
    start.handle.resume(BASELINE)
    while (counted := block.counted(start.handle.trial_steps)) is None:
        await start.handle.next_steps()
    return counted
