"""What a command does with the user's own job while the job runs: a trial, a tuning session, a sweep."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpuconsole.cli.trying import ready, try_now
from gpuconsole.engine.engine import Engine
from gpuconsole.experiments.sweep import JobSweeper, points
from gpuconsole.experiments.tune import Tuner
from gpuconsole.model.experiments.certificate import Certificate, encode
from gpuconsole.model.experiments.sweep import Sweep
from gpuconsole.model.files import write_whole
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.knob import Value
from gpuconsole.model.run import Run
from gpuconsole.report.experiments.sweep import sweep_report
from gpuconsole.report.experiments.tuning import attempt_line, certificate_report
from gpuconsole.report.parts import printed
from gpuconsole.session.api import SessionError

TICK_S = 0.25
Say = Callable[[str], None]


class JobWork:
    """Work on a running job. `run` is cancelled when the job ends; `report` is the text for the summary, and `keep` adds to the snapshot."""

    async def run(self, engine: Engine, say: Say) -> None:
        raise NotImplementedError

    def report(self) -> str:
        return ""

    def sweeps(self) -> list[Sweep]:
        """The sweeps for the snapshot."""
        return []


class TrialOnJob(JobWork):
    """`--try` and `--apply-top`: one trial as soon as the diagnosis is complete."""

    def __init__(self, tries: Knobs) -> None:
        self._tries = tries

    async def run(self, engine: Engine, say: Say) -> None:
        await trains(engine)
        while not ready(engine.view(), self._tries, late=False):
            await asyncio.sleep(TICK_S)
        await try_now(engine, self._tries, asyncio.Event(), say)


class TuneJob(JobWork):
    """`tune -- COMMAND`: a tuning session on the job. The job then continues with the kept changes."""

    def __init__(self, args: argparse.Namespace, target: Path | None) -> None:
        """`target`: the file of the certificate."""
        self._args, self._target = args, target
        self._certificate: Certificate | None = None

    async def run(self, engine: Engine, say: Say) -> None:
        run = await trains(engine)

        def on_change(certificate: Certificate) -> None:
            self._certificate = msgspec.structs.replace(certificate, command_digest=run.command_digest)
            if self._target is not None:
                write_whole(self._target, encode(self._certificate))
            if certificate.attempts and certificate.proof is None and not certificate.stopped:
                say(attempt_line(len(certificate.attempts), certificate.attempts[-1]))

        say(f"{run.scenario}: diagnosing the job")
        tuner = Tuner(
            engine,
            run.scenario,
            self._args.budget,
            allow_training_changes=self._args.allow_training_changes,
            only=self._args.only,
            on_change=on_change,
        )
        try:
            await tuner.run()
        except SessionError as error:
            tuner.certificate.stopped = str(error)
            on_change(tuner.certificate)
        except asyncio.CancelledError:
            tuner.certificate.stopped = "the job has ended"
            on_change(tuner.certificate)
            raise
        else:
            say("tuning has ended; the job continues with the kept changes")

    def report(self) -> str:
        return (
            printed(certificate_report(self._certificate))
            if self._certificate is not None
            else "tuning did not begin: the job made no step"
        )


class SweepJob(JobWork):
    """`sweep --vary KNOB=A,B -- COMMAND`: all settings in turn on the job's own steps. The job then continues with its own values."""

    def __init__(self, args: argparse.Namespace, vary: dict[str, list[Value]]) -> None:
        self._args, self._vary = args, vary
        self._newest: list[Sweep] = []

    async def run(self, engine: Engine, say: Say) -> None:
        run = await trains(engine)
        while run.steady_from_s is None:
            await asyncio.sleep(TICK_S)
            run = current(engine)
        if unknown := [name for name in self._vary if name not in run.knobs]:
            say(f"sweep: {run.why_not({unknown[0]: self._vary[unknown[0]][0]})}")
            return
        _, worker = engine.control.running()
        sweeper = JobSweeper(run, worker, engine.device())
        try:
            await sweeper.run(points(self._vary, run.knobs, self._args.grid), self._args.repeat, self._args.stop_settled, self._update)
        except SessionError as error:
            say(f"sweep: {error}")
        finally:
            await sweeper.close()
        say("the sweep has ended; the job continues with its own values")

    def _update(self, sweep: Sweep) -> None:
        self._newest[:] = [sweep]

    def sweeps(self) -> list[Sweep]:
        return self._newest

    def report(self) -> str:
        return printed(sweep_report(self._newest[0], tuple(self._vary))) if self._newest else "sweep: nothing was measured"


async def trains(engine: Engine) -> Run:
    """The run of the job, as soon as its knobs are known."""
    while (run := current(engine)).state == "starting" or not run.knobs:
        await asyncio.sleep(TICK_S)
    return run


def current(engine: Engine) -> Run:
    """The current run."""
    run = engine.view().run
    assert run is not None
    return run
