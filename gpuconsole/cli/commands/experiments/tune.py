"""`gpuconsole tune`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from gpuconsole.cli import options, output
from gpuconsole.cli.exits import exit_code, on_interrupt
from gpuconsole.cli.files import read_tuned, save
from gpuconsole.cli.job import check_job, headless_job
from gpuconsole.cli.options import CommandFailed, Option, UsageError
from gpuconsole.cli.scenario import (
    assignments,
    check_nodes,
    check_server,
    scenario,
    scenario_of,
    server_of,
)
from gpuconsole.cli.session import ended_before, session
from gpuconsole.cli.values import writable
from gpuconsole.experiments.tune import TUNE_S, Tuner
from gpuconsole.host.settings import seconds
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.knobs.catalogue import Knobs, nearest
from gpuconsole.model.scenario import Scenario, job_scenario
from gpuconsole.report.experiments import attempt_line, certificate_report
from gpuconsole.session.api import SessionError

HELP = "try fix after fix, keep what is proven"
DESCRIPTION = """Run a scenario and make it faster. The command tries the change with the largest
predicted speedup per second of trial, keeps the change if paired measurement proves it, and
diagnoses the run again. The command ends when no further change is predicted to gain 5 %.

It never changes the load on a model server. It changes what the model learns per step (batch size)
only with --allow-training-changes. At the end it measures all kept changes together against the
start, and prints the settings as flags and code. Ctrl-C ends the session and keeps what was proven.

With --verify, the command tunes nothing: it computes every interval and verdict of a snapshot again
from its pairs. With --measure it also tries the settings on this machine. Exit code 1: the snapshot
does not hold."""

EXAMPLES = """examples:
  gpuconsole tune data-starved
  gpuconsole tune serve-prefix --budget 600 --snapshot tuned.json
  gpuconsole tune train-gpt --allow-training-changes
  gpuconsole tune train-vision --only num_workers,prefetch_factor,optim    change no other setting
  gpuconsole tune serve-prefix --resume tuned.json          continue an interrupted session
  gpuconsole tune --only num_workers,pin_memory --allow-loader -- python train.py
      your own job; it continues with what is proven
  gpuconsole tune --verify tuned.json
      do the intervals and verdicts follow from the measured pairs of blocks?
  gpuconsole tune --verify tuned.json --measure    and is the speedup the same on this machine?
"""


def names(text: str) -> list[str]:
    """Split `KNOB,KNOB` into names. Raises ValueError."""
    knobs = [name.strip() for name in text.split(",") if name.strip()]
    if not knobs:
        raise ValueError("names no setting")
    return knobs


VERIFIES = {"--verify": "does not go with --verify, which tunes nothing"}
MEASURES = {"--verify, no --measure": "goes with --measure: without --measure nothing runs"}
OPTIONS = (
    options.SCENARIO._replace(refused=VERIFIES),
    options.SET._replace(refused={**options.SET.refused, **VERIFIES}),
    Option(
        "--budget",
        "time in seconds; a trial that would take longer does not start (default 300)",
        "S",
        seconds,
        VERIFIES,
    ),
    Option(
        "--allow-training-changes",
        "also try changes of what the model learns per step, such as the batch size",
        refused=VERIFIES,
    ),
    Option(
        "--only",
        "change only these settings",
        "NAME,NAME",
        names,
        VERIFIES,
        default=[],
        completes="knob",
    ),
    Option(
        "--resume",
        "continue the session of this snapshot of tune: its attempts are not repeated",
        "FILE",
        Path,
        {**options.not_for_jobs("a job starts anew"), **VERIFIES},
    ),
    Option(
        "--verify",
        "check this snapshot of tune",
        "FILE",
        Path,
        options.not_for_jobs("it checks a file"),
    ),
    Option(
        "--measure",
        (
            "with --verify: run the scenario with the settings of the start, and try all kept"
            " changes together"
        ),
        refused={"no --verify": "goes with --verify FILE"},
    ),
    options.SNAPSHOT._replace(refused=VERIFIES),
    options.JSON._replace(
        help="the snapshot, or the result of --verify, on stdout and nothing else there"
    ),
    options.SUMMARY,
    options.PROBE,
    options.PATCH,
    options.ALLOW_NUMERICS,
    options.ALLOW_LOADER,
    options.NODES.refused_too(MEASURES),
    options.SERVING.refused_too(MEASURES),
    options.WATCHING.refused_too(MEASURES),
)


def run(args: argparse.Namespace) -> int:
    if args.verify:
        from gpuconsole.cli.verifying import verify

        return verify(args)
    args.budget = args.budget or TUNE_S
    if args.job:
        return run_on_job(args)
    chosen = scenario(scenario_of(args))
    knobs = assignments(args.knobs, chosen)
    check_server(args, chosen.workload, server_of(chosen, knobs))
    check_nodes(args, chosen.workload)
    check_only(args.only, chosen)
    writable(args, "--snapshot")
    writable(args, "--record")
    resumed = read_tuned(args.resume)[1] if args.resume else None
    if resumed is not None:
        if resumed.scenario != args.scenario:
            raise UsageError(f"--resume {args.resume}: the session tuned {resumed.scenario}")
        if args.only and sorted(args.only) != sorted(resumed.only):
            raise UsageError(
                f"--resume {args.resume}: the session had another --only:"
                f" {','.join(resumed.only) or 'all settings'}"
            )
        if any(resumed.start.get(name) != value for name, value in knobs.items()):
            raise UsageError(f"--resume {args.resume}: the session had other values of --set")
        knobs = {
            name: value for name, value in resumed.end.items() if name in chosen.workload.knobs
        }
    return asyncio.run(_main(args, knobs, resumed))


def run_on_job(args: argparse.Namespace) -> int:
    """Tune the user's own job while it runs. Return the exit code of the job. Raises UsageError."""
    check_job(args)
    check_only(args.only, job_scenario("the job"))
    from gpuconsole.cli.job_work import TuneJob

    return headless_job(args, TuneJob(args))


def check_only(names: list[str], chosen: Scenario) -> None:
    """Check that the scenario has each knob that --only names. Raises UsageError."""
    if unknown := [name for name in names if name not in chosen.workload.knobs]:
        own = chosen.workload.knobs
        raise UsageError(
            f"--only {unknown[0]}: no setting of {chosen.name}{nearest(unknown[0], own)}; it has:"
            f" {', '.join(own)}"
        )


async def _main(args: argparse.Namespace, knobs: Knobs, resumed: Certificate | None) -> int:
    interrupted = asyncio.Event()
    on_interrupt(interrupted.set)

    tuner: Tuner | None = None
    async with session(args, CommandFailed) as engine:

        def on_change(certificate: Certificate) -> None:
            _progress(certificate)
            # a console that is killed leaves what was proven, and --resume continues from there
            save(engine.snapshot().with_tuning(certificate), args.snapshot)

        try:
            await engine.start(args.scenario, knobs)
            output.progress(f"{args.scenario}: diagnosing the run")
            tuner = Tuner(
                engine,
                args.scenario,
                args.budget,
                overrides=knobs,
                allow_training_changes=args.allow_training_changes,
                only=args.only,
                on_change=on_change,
                resumed=resumed,
            )
            failed = await _failed(tuner, interrupted)
            await engine.end_run("finished")
        finally:
            snapshot = engine.snapshot().with_tuning(tuner.certificate if tuner else None)
            saved = save(snapshot, args.snapshot)
    certificate = snapshot.tuning
    assert certificate is not None
    output.show_result(args, snapshot, lambda: certificate_report(certificate))
    return exit_code(failed or not saved)


def _progress(certificate: Certificate) -> None:
    if certificate.attempts and certificate.proof is None and not certificate.stopped:
        output.progress(attempt_line(len(certificate.attempts), certificate.attempts[-1]))


async def _failed(tuner: Tuner, interrupted: asyncio.Event) -> bool:
    """Tune until the end, an interrupt, or a failure of the run. Return whether the run failed."""
    tuning = asyncio.create_task(tuner.run())
    if not await ended_before(interrupted, tuning):
        await asyncio.wait([tuning])
        tuner.certificate.stopped = "interrupted"
        return False
    try:
        tuning.result()
    except SessionError as error:
        output.problem(str(error))
        tuner.certificate.stopped = str(error)
        return True
    return False
