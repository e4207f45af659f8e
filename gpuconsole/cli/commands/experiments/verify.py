"""`gpuconsole verify`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import msgspec

from gpuconsole.cli import output
from gpuconsole.cli.commands.experiments.tune import read_certificate
from gpuconsole.cli.exits import FAILED, OK, exit_code, on_interrupt
from gpuconsole.cli.options.console import CONSOLE_OPTIONS, add_console_options, record_path
from gpuconsole.cli.options.engine import live_engine, open_engine
from gpuconsole.cli.options.files import to_json
from gpuconsole.cli.options.nodes import NODE_OPTIONS, add_node_options, check_nodes
from gpuconsole.cli.options.scenario import scenario, server_of
from gpuconsole.cli.options.serving import OPTIONS as SERVING_OPTIONS
from gpuconsole.cli.options.serving import add_serving_options, check_server
from gpuconsole.cli.options.usage import UsageError, refuse_given
from gpuconsole.experiments.certificate import mistakes
from gpuconsole.experiments.session import LiveSession
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.text import visible
from gpuconsole.report.experiments import gain, measured, verdict
from gpuconsole.report.parts import Report, labelled, text
from gpuconsole.session.api import SessionError

EXAMPLES = """examples:
  gpuconsole verify tuned.json                 do the intervals and verdicts follow from the measured pairs of blocks?
  gpuconsole verify tuned.json --measure       and is the gain the same on this machine?
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "verify",
        help="check a certificate of tune",
        description="Compute every interval and verdict of a certificate again from its pairs. With --measure, also try its settings on this machine. Exit code 1: the certificate does not hold.",
        epilog=EXAMPLES,
    )
    parser.add_argument("file", type=Path, metavar="CERTIFICATE")
    parser.add_argument(
        "--measure", action="store_true", help="run the scenario with the settings of the start, and try all kept changes together"
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON, and nothing else on stdout")
    add_node_options(parser)
    add_serving_options(parser)
    add_console_options(parser.add_argument_group("watching devices"))
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    if not args.measure:
        refuse_given(args, "goes with --measure: without it nothing runs", *CONSOLE_OPTIONS, *NODE_OPTIONS, *SERVING_OPTIONS)
    record_path(args)
    certificate = read_certificate(args.file)
    if args.measure:
        if not certificate.changed:
            raise UsageError(f"--measure: {args.file} kept nothing")
        chosen = scenario(certificate.scenario)
        check_server(args, chosen.workload, server_of(chosen, certificate.start))
        check_nodes(args, chosen.workload)
    found = Verified(str(args.file), certificate.scenario, certificate.device, certificate.created, mistakes(certificate))
    found.trials = len(certificate.attempts) + (certificate.proof is not None)
    found.claimed = certificate.gain
    for mistake in found.mistakes:
        output.problem(mistake)
    if args.measure and not found.mistakes:
        try:
            engine, found.measured = asyncio.run(_measure(args, certificate))
        except asyncio.CancelledError:
            return exit_code()
        except SessionError as error:
            output.problem(str(error))
            return FAILED
        found.differences = _differences(certificate, engine.environment())
    if args.json:
        print(to_json(found))
    else:
        output.show(report(found, certificate))
    holds = not found.mistakes and (found.measured is None or found.measured.verdict == "win")
    return OK if holds else FAILED


class Verified(msgspec.Struct):
    """The result. `mistakes`: what does not follow from the pairs. `measured`: the trial on this machine; None without --measure.
    `differences`: name of a part of the environment to its values there and here."""

    file: str
    scenario: str
    device: str
    created: str
    mistakes: list[str]
    trials: int = 0
    claimed: Speedup | None = None
    measured: Trial | None = None
    differences: dict[str, tuple[str, str]] = {}


def report(found: Verified, certificate: Certificate) -> Report:
    """The result for people."""
    if found.mistakes:
        return [text(f"{found.file}: does not hold: {count(len(found.mistakes), 'mistake')} in {count(found.trials, 'trial')}", "alert")]
    of = f"{found.scenario} on {found.device}, {found.created}"
    lines: Report = [
        text(visible(f"{found.file}: {of}: {count(found.trials, 'trial')}, all intervals and verdicts follow from the pairs")),
        labelled("claimed", visible(gain(certificate) or "nothing"), column=10),
    ]
    lines += [
        labelled("differs", visible(f"{name}: {there} there, {here} here"), column=10) for name, (there, here) in found.differences.items()
    ]
    if found.measured is not None:
        trial = found.measured
        words = f"n/a: {trial.error}" if trial.speedup is None else f"{measured(trial)}, {verdict(trial)}"
        lines.append(labelled("measured", visible(words), "good" if trial.verdict == "win" else "alert", column=10))
    return lines


async def _measure(args: argparse.Namespace, certificate: Certificate) -> tuple[LiveSession, Trial]:
    """The settings of the start, with a trial of all kept changes together."""
    chosen = scenario(certificate.scenario)
    engine = live_engine(args)
    measuring = asyncio.current_task()
    assert measuring is not None
    on_interrupt(measuring.cancel)
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


def _differences(certificate: Certificate, here: Environment) -> dict[str, tuple[str, str]]:
    """What differs between the machine of the certificate and this machine."""
    found = {}
    for name in ("cpu", "cores", "torch", "cuda", "driver"):
        there, now = getattr(certificate.environment, name), getattr(here, name)
        if there != now:
            found[name] = (str(there or "none"), str(now or "none"))
    return found


def count(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
