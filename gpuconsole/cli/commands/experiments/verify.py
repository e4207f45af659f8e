"""`gpuconsole verify`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from gpuconsole.cli.commands.experiments.tune import read_certificate
from gpuconsole.cli.options.console import add_console_options, record_path, refuse_recording
from gpuconsole.cli.options.engine import live_engine, open_engine
from gpuconsole.cli.options.nodes import add_node_options
from gpuconsole.cli.options.scenario import scenario
from gpuconsole.cli.options.serving import add_serving_options
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.engine.engine import Engine
from gpuconsole.experiments.certificate import mistakes
from gpuconsole.model.experiments.certificate import Certificate
from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.text import visible
from gpuconsole.report.experiments.trial import measured, verdict
from gpuconsole.report.experiments.tuning import gain
from gpuconsole.session.api import SessionError

EXAMPLES = """examples:
  gpuconsole verify tuned.json                 do the intervals and verdicts follow from the measured pairs of blocks?
  gpuconsole verify tuned.json --measure       and is the gain the same on this machine?

Exit code: 0 the certificate holds, 1 it does not, 2 bad usage.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "verify",
        help="check a certificate of `gpuconsole tune`",
        description="Compute every interval and verdict of a certificate again from its pairs. With --measure, also try its settings on this machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="CERTIFICATE")
    parser.add_argument(
        "--measure", action="store_true", help="run the scenario with the settings of the start, and try all kept changes together"
    )
    add_node_options(parser)
    add_serving_options(parser)
    add_console_options(parser)
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    if not args.measure:
        refuse_recording(args, "goes with --measure: without a run there is nothing to record")
    record_path(args)
    certificate = read_certificate(args.file)
    found = mistakes(certificate)
    for mistake in found:
        print(visible(f"gpuconsole: {mistake}"), file=sys.stderr)
    trials = len(certificate.attempts) + (certificate.proof is not None)
    if found:
        print(f"{args.file}: does not hold: {count(len(found), 'mistake')} in {count(trials, 'trial')}")
        return 1
    print(
        visible(
            f"{args.file}: {certificate.scenario} on {certificate.device}, {certificate.created}: "
            f"{count(trials, 'trial')}, all intervals and verdicts follow from the pairs"
        )
    )
    print(visible(f"claimed   {gain(certificate) or 'nothing'}"))
    if not args.measure:
        return 0
    if not certificate.changed:
        raise UsageError(f"--measure: {args.file} kept nothing")
    try:
        return _judge(certificate, *asyncio.run(_measure(args, certificate)))
    except SessionError as error:
        print(f"gpuconsole: {error}", file=sys.stderr)
        return 1


async def _measure(args: argparse.Namespace, certificate: Certificate) -> tuple[Engine, Trial]:
    """The settings of the start, with a trial of all kept changes together."""
    chosen = scenario(certificate.scenario)
    engine = live_engine(args)
    try:
        await open_engine(engine, record_path(args))
        start: Knobs = {name: value for name, value in certificate.start.items() if name in chosen.workload.knobs}
        await engine.start(certificate.scenario, start)
        while (run := engine.view().run) is None or run.steady_from_s is None:
            if run is not None and run.state not in ("starting", "running"):
                raise SessionError(run.error or f"the run has {run.state}")
            await asyncio.sleep(0.25)
        trial = await engine.try_change(certificate.changed)
        await engine.end_run("finished")
        return engine, trial
    finally:
        await engine.close()


def _judge(certificate: Certificate, engine: Engine, trial: Trial) -> int:
    here = engine.environment()
    for name in ("cpu", "cores", "torch", "cuda", "driver"):
        there, now = getattr(certificate.environment, name), getattr(here, name)
        if there != now:
            print(visible(f"differs   {name}: {there or 'none'} there, {now or 'none'} here"))
    if trial.speedup is None:
        print(f"measured  n/a: {trial.error}")
        return 1
    print(f"measured  {measured(trial)}, {verdict(trial)}")
    return 0 if trial.verdict == "win" else 1


def count(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
