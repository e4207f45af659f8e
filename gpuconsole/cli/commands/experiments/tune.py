"""`gpuconsole tune`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.exits import FAILED, exit_code, on_interrupt
from gpuconsole.cli.job import headless_job
from gpuconsole.cli.options.console import add_console_options, record_path
from gpuconsole.cli.options.engine import live_engine, open_engine
from gpuconsole.cli.options.files import add_headless_options, to_json, writable
from gpuconsole.cli.options.job import add_change_options, add_probe_option, add_summary_option, check_options, refuse_job_options
from gpuconsole.cli.options.nodes import add_node_options, check_nodes
from gpuconsole.cli.options.scenario import add_scenario, assignments, scenario, scenario_of, server_of
from gpuconsole.cli.options.serving import add_serving_options, check_server
from gpuconsole.cli.options.usage import UsageError, refuse_given, seconds
from gpuconsole.experiments.session import LiveSession
from gpuconsole.experiments.tune import TUNE_S, Tuner
from gpuconsole.model.certificate import MOST_BYTES, Certificate, CertificateError, decode, encode
from gpuconsole.model.files import read_limited, write_whole
from gpuconsole.model.knobs.catalogue import Knobs, nearest
from gpuconsole.model.scenario import Scenario, job_scenario
from gpuconsole.model.text import visible
from gpuconsole.report.experiments import attempt_line, certificate_report
from gpuconsole.session.api import SessionError

DESCRIPTION = """Run a scenario and make it faster. The command tries the change with the largest predicted gain per second of trial, keeps the
change if paired measurement proves it, and diagnoses the run again, until no further change is predicted to gain 5 %.

It never changes the load on a model server. It changes what the model learns per step (batch size) only with --allow-training-changes.
At the end it measures all kept changes together against the start, and prints the settings as flags and code. Ctrl-C ends the session and
keeps what was proven."""

EXAMPLES = """examples:
  gpuconsole tune data-starved
  gpuconsole tune serve-prefix --budget 600 --certificate tuned.json
  gpuconsole tune train-gpt --allow-training-changes --snapshot session.json
  gpuconsole tune train-vision --only num_workers,prefetch_factor,optim    change no other knob
  gpuconsole tune serve-prefix --resume tuned.json          continue an interrupted session
  gpuconsole tune --only num_workers,pin_memory -- python train.py       your own job; it continues with what is proven
  gpuconsole verify tuned.json                              check the certificate
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "tune",
        help="try fix after fix, keep what is proven",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    add_scenario(parser)
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="knobs", help="set a knob; may be repeated")
    parser.add_argument(
        "--budget",
        type=seconds,
        default=TUNE_S,
        metavar="S",
        help="time in seconds; a trial that would take longer does not start (default 300)",
    )
    parser.add_argument("--objective", choices=("tokens_per_s",), default="tokens_per_s", help="what to improve: throughput")
    parser.add_argument(
        "--allow-training-changes", action="store_true", help="also try changes of what the model learns per step, such as the batch size"
    )
    parser.add_argument("--only", type=names, default=[], metavar="KNOB,KNOB", help="change only these knobs")
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="write what was proven as JSON, again after every trial")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="continue the session of this certificate: its attempts are not repeated, and new attempts are added to the file",
    )
    add_headless_options(parser, "write the session as JSON when it ends", "the certificate on stdout and nothing else there")
    add_summary_option(parser)
    add_probe_option(parser)
    add_change_options(parser)
    add_node_options(parser)
    add_serving_options(parser)
    add_console_options(parser.add_argument_group("watching devices"))
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    if args.job:
        return run_on_job(args)
    refuse_job_options(args)
    if args.resume is not None:
        refuse_given(args, "does not go with --resume, which adds the new attempts to its own file", "certificate")
    chosen = scenario(scenario_of(args))
    knobs = assignments(args.knobs, chosen)
    check_server(args, chosen.workload, server_of(chosen, knobs))
    check_nodes(args, chosen.workload)
    check_only(args.only, chosen)
    target = writable(args.resume or args.certificate, "--resume" if args.resume else "--certificate")
    writable(args.snapshot, "--snapshot")
    record_path(args)
    resumed = read_certificate(args.resume) if args.resume else None
    if resumed is not None:
        if resumed.scenario != args.scenario:
            raise UsageError(f"--resume {args.resume}: the certificate is about {resumed.scenario}")
        if args.only and sorted(args.only) != sorted(resumed.only):
            raise UsageError(f"--resume {args.resume}: the session had another --only: {','.join(resumed.only) or 'all knobs'}")
        if any(resumed.start.get(name) != value for name, value in knobs.items()):
            raise UsageError(f"--resume {args.resume}: the session had other values of --set")
        knobs = {name: value for name, value in resumed.end.items() if name in chosen.workload.knobs}
    try:
        return asyncio.run(_main(args, knobs, target, resumed))
    except SessionError as error:
        output.problem(str(error))
        return FAILED


def run_on_job(args: argparse.Namespace) -> int:
    """Tune the user's own job while it runs; returns the exit code of the job. Raises UsageError."""
    check_options(args)
    check_only(args.only, job_scenario(args.job[0]))
    from gpuconsole.cli.job_work import TuneJob

    return headless_job(args, TuneJob(args, writable(args.certificate, "--certificate")))


def check_only(names: list[str], chosen: Scenario) -> None:
    """Raises UsageError where --only names a knob that the scenario does not have."""
    if unknown := [name for name in names if name not in chosen.workload.knobs]:
        known = chosen.workload.knobs
        raise UsageError(f"--only {unknown[0]}: no knob of {chosen.name}{nearest(unknown[0], known)}; it has: {', '.join(known)}")


def names(text: str) -> list[str]:
    """`KNOB,KNOB` for argparse."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise argparse.ArgumentTypeError("names no knob")
    return found


def read_certificate(path: Path) -> Certificate:
    """The certificate in `path`; raises UsageError."""
    try:
        return decode(read_limited(path, MOST_BYTES))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except CertificateError as error:
        raise UsageError(f"{path}: {error}") from None


async def _main(args: argparse.Namespace, knobs: Knobs, target: Path | None, resumed: Certificate | None) -> int:
    engine = live_engine(args)
    interrupted = asyncio.Event()
    on_interrupt(interrupted.set)

    def on_change(certificate: Certificate) -> None:
        if target is not None:
            write_whole(target, encode(certificate))
        if certificate.attempts and certificate.proof is None and not certificate.stopped:
            report(attempt_line(len(certificate.attempts), certificate.attempts[-1]))

    try:
        await open_engine(engine, record_path(args))
        try:
            await engine.start(args.scenario, knobs)
            report(f"{args.scenario}: diagnosing the run")
            certificate, failed = await _tune(engine, args, knobs, on_change, resumed, interrupted)
            await engine.end_run("finished")
        finally:
            if args.snapshot is not None:
                engine.export(args.snapshot)
    finally:
        await engine.close()
    if args.json:
        print(to_json(certificate))
    else:
        output.show(certificate_report(certificate))
    return exit_code(failed)


async def _tune(
    engine: LiveSession,
    args: argparse.Namespace,
    knobs: Knobs,
    on_change: Callable[[Certificate], None],
    resumed: Certificate | None,
    interrupted: asyncio.Event,
) -> tuple[Certificate, bool]:
    """Tune until the end, an interrupt, or a failure of the run. Returns the certificate so far, and whether the run failed."""
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
    tuning, stop = asyncio.create_task(tuner.run()), asyncio.create_task(interrupted.wait())
    await asyncio.wait([tuning, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not tuning.done():
        tuning.cancel()
        await asyncio.wait([tuning])
        tuner.certificate.stopped = "interrupted"
        on_change(tuner.certificate)
        return tuner.certificate, False
    try:
        return tuning.result(), False
    except SessionError as error:
        output.problem(str(error))
        tuner.certificate.stopped = str(error)
        on_change(tuner.certificate)
        return tuner.certificate, True


def report(text: str) -> None:
    """A line of progress on stderr."""
    if not output.quiet():
        with contextlib.suppress(OSError):
            print(visible(text), file=sys.stderr, flush=True)
