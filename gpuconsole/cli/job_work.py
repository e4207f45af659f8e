"""What a command does with the user's own job while the job runs: a trial, a tuning session, a
sweep."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Callable
from typing import Literal

import msgspec

from gpuconsole.cli import output
from gpuconsole.cli.exits import exit_code
from gpuconsole.cli.files import save
from gpuconsole.cli.headless import ready, try_now
from gpuconsole.cli.options import CommandFailed
from gpuconsole.cli.session import session, until_interrupt
from gpuconsole.engine.children.job import JobCommand
from gpuconsole.experiments.restart import RestartVariants, sweep_by_restarts
from gpuconsole.experiments.session import LiveSession
from gpuconsole.experiments.statistics import BASELINE
from gpuconsole.experiments.sweep import JobSweeper, points
from gpuconsole.experiments.trial import TrialFailed, TrialLimits, run_trial
from gpuconsole.experiments.tune import Tuner
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.experiments import Sweep, SweepPoint, Trial
from gpuconsole.model.job import JOB
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.knobs.knob import KnobError, Value
from gpuconsole.model.run import Run
from gpuconsole.report.experiments import attempt_line, certificate_report, sweep_report
from gpuconsole.report.parts import printed
from gpuconsole.report.session import trial_text
from gpuconsole.session.api import SessionError

TICK_S = 0.25
RESTARTS_S = 300.0
"""Seconds after which a trial by restarts ends as undecided."""
Say = Callable[[str], None]


class JobWork:
    """Work on a running job. `run` is cancelled when the job ends; `report` is the text for the
    summary.

    `settles`: a trial that runs when the job ends has some time to report its end.
    """

    settles = False
    certificate: Certificate | None = None
    """What a tuning session has proven, for the snapshot."""

    async def run(self, engine: LiveSession, say: Say) -> None:
        raise NotImplementedError

    def report(self) -> str:
        return ""

    def sweeps(self) -> list[Sweep]:
        """The sweeps for the snapshot."""
        return []


class TrialOnJob(JobWork):
    """`--try` and `--apply-top`: one trial as soon as the diagnosis is complete."""

    settles = True

    def __init__(self, tries: Knobs) -> None:
        self.tries = tries

    async def run(self, engine: LiveSession, say: Say) -> None:
        await trains(engine)
        while not ready(engine.view(), self.tries, late=False):
            await asyncio.sleep(TICK_S)
        await try_now(engine, self.tries, asyncio.Event(), say)


class TuneJob(JobWork):
    """`tune -- COMMAND`: a tuning session on the job. The job then continues with the kept
    changes."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args

    async def run(self, engine: LiveSession, say: Say) -> None:
        run = await trains(engine)

        def on_change(certificate: Certificate) -> None:
            self.certificate = msgspec.structs.replace(
                certificate, command_digest=run.command_digest
            )
            if certificate.attempts and certificate.proof is None and not certificate.stopped:
                say(attempt_line(len(certificate.attempts), certificate.attempts[-1]))
            # a console that is killed leaves what was proven
            save(engine.snapshot().with_tuning(self.certificate), self._args.snapshot)

        say(f"{run.scenario}: diagnosing the job")
        tuner = Tuner(
            engine,
            run.scenario,
            self._args.budget,
            allow_training_changes=self._args.allow_training_changes,
            allow_numerics=lambda: self._args.allow_numerics,
            allow_loader=lambda: self._args.allow_loader,
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
            printed(certificate_report(self.certificate))
            if self.certificate is not None
            else "tuning did not begin: the job made no step"
        )


class SweepJob(JobWork):
    """`sweep --vary NAME=A,B -- COMMAND`: all settings in turn on the job's own steps. The job then
    continues with its own values."""

    def __init__(self, args: argparse.Namespace, vary: dict[str, list[Value]]) -> None:
        self._args, self._vary = args, vary
        self._newest: list[Sweep] = []

    async def run(self, engine: LiveSession, say: Say) -> None:
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
            await sweeper.run(
                points(self._vary, run.knobs, self._args.grid),
                self._args.repeat,
                self._args.stop_settled,
                self._update,
            )
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
        return (
            printed(sweep_report(self._newest[0], tuple(self._vary)))
            if self._newest
            else "sweep: nothing was measured"
        )


async def trains(engine: LiveSession) -> Run:
    """The run of the job, as soon as its knobs are known."""
    while (run := current(engine)).state == "starting" or not run.knobs:
        await asyncio.sleep(TICK_S)
    return run


def current(engine: LiveSession) -> Run:
    """The current run."""
    run = engine.view().run
    assert run is not None
    return run


def try_by_restarts(args: argparse.Namespace, tries: Knobs) -> int:
    """`--restart-knob`: prove `tries` by starting the command again for both sides in turn. Returns
    1 where a side could not be measured."""
    changed = with_values(args, tries)
    output.print_note(f"without the change: {shlex.join(args.job)}")
    output.print_note(f"with the change:    {shlex.join(changed)}")
    return asyncio.run(_restarts(args, tries, changed))


def with_values(args: argparse.Namespace, knobs: Knobs) -> tuple[str, ...]:
    """The command of the user's own with the values of these knobs, by the flags of
    --restart-knob."""
    command = tuple(args.job)
    for restart_knob in args.restart_knobs:
        if restart_knob.knob in knobs:
            command = restart_knob.applied(command, knobs[restart_knob.knob])
    return command


async def _restarts(args: argparse.Namespace, tries: Knobs, changed: tuple[str, ...]) -> int:
    before, after = (
        JobCommand(command, stored=args.store_command, apart=True)
        for command in (tuple(args.job), changed)
    )
    sides = RestartVariants(before, after, output.print_note)
    async with session(args) as engine:
        try:
            outcome = await until_interrupt(_measure(engine, sides, before, tries, args))
        except TrialFailed as problem:
            raise CommandFailed(str(problem)) from None
        finally:
            await sides.close()
        if outcome is None:
            return exit_code()
        run, trial = outcome
        snapshot = msgspec.structs.replace(engine.snapshot(), runs=[run], trials=[trial])
        output.on_stderr(f"{trial_text(trial, snapshot, output.paint(sys.stderr))}\n")
        saved = save(snapshot, args.snapshot)
        return exit_code(trial.state != "done" or not saved)


async def _measure(
    engine: LiveSession,
    sides: RestartVariants,
    command: JobCommand,
    tries: Knobs,
    args: argparse.Namespace,
) -> tuple[Run, Trial]:
    """The run of the command without the change, and the trial. Raises TrialFailed."""
    await sides.switch_to(BASELINE)
    started = sides.started(BASELINE).started
    own = {
        knob.knob: value
        for knob in args.restart_knobs
        if (value := knob.value_in(command.words)) is not None
    }
    knobs: Knobs = {
        **dict.fromkeys(tries, "default"),
        **own,
        **(started.knobs if started is not None else {}),
    }
    run = Run(
        "1", command.name, JOB, knobs, engine.device().id, "finished", command_digest=command.digest
    )
    return run, await run_trial(
        Trial("1", "1", tries), run, sides, lambda trial: None, TrialLimits(RESTARTS_S, RESTARTS_S)
    )


def sweep_by_restarting(args: argparse.Namespace, vary: dict[str, list[Value]]) -> int:
    """`sweep --restart-knob`: start the command for each setting in turn. Returns 0, or 1 where a
    setting could not be measured."""
    return asyncio.run(_sweep(args, vary))


async def _sweep(args: argparse.Namespace, vary: dict[str, list[Value]]) -> int:
    command = tuple(args.job)
    given = {knob.knob: _parsed(knob.knob, knob.value_in(command)) for knob in args.restart_knobs}
    base: Knobs = {
        name: values[0] if (value := given[name]) is None else value
        for name, values in vary.items()
    }
    settings = points(vary, base, args.grid)
    commands = [JobCommand(with_values(args, setting), apart=True) for setting in settings]
    async with session(args) as engine:
        device = engine.device().id
        clock: Literal["wall", "contention_free"] = (
            "wall"
            if device != "cpu" or any(CATALOGUE[name].loader for name in vary)
            else "contention_free"
        )
        rows = [SweepPoint(setting) for setting in settings]
        sweep = Sweep(JobCommand(command).name, device, "samples/s", base, rows, args.repeat, clock)
        # After Ctrl-C, what was measured until then is printed.
        await until_interrupt(
            sweep_by_restarts(sweep, commands, output.print_note, lambda sweep: None)
        )
        output.on_stderr(
            f"{printed(sweep_report(sweep, tuple(vary)), paint=output.paint(sys.stderr))}\n"
        )
        saved = args.snapshot is None or save(
            msgspec.structs.replace(engine.snapshot(), sweeps=[sweep]), args.snapshot
        )
        return exit_code(not saved or any(point.error for point in sweep.points))


def _parsed(name: str, text: str | None) -> Value | None:
    """The value of a flag as a value of the knob; None where there is none, or where the knob does
    not have such a value."""
    try:
        return CATALOGUE[name].parse(text) if text is not None else None
    except KnobError:
        return None
