"""`gpuconsole tune --verify`: check that the claims of a snapshot of `tune` follow from its pairs
of blocks. With `--measure`, also check that the claimed speedup holds on this machine."""

from __future__ import annotations

import argparse
import asyncio

import msgspec

from gpuconsole.cli import output
from gpuconsole.cli.exits import FAILED, OK, exit_code
from gpuconsole.cli.files import read_tuned
from gpuconsole.cli.options import CommandFailed, UsageError
from gpuconsole.cli.scenario import check_nodes, check_server, scenario, server_of
from gpuconsole.cli.session import session, until_interrupt
from gpuconsole.cli.values import writable
from gpuconsole.experiments.certificate import mistakes
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.text import visible
from gpuconsole.report.experiments import gain, measured, verdict
from gpuconsole.report.parts import Report, labelled, text
from gpuconsole.session.api import SessionError


def verify(args: argparse.Namespace) -> int:
    """Check the snapshot of --verify. With --measure, also try its settings on this machine. Return
    the exit code. Raises UsageError."""
    writable(args, "--record")
    snapshot, certificate = read_tuned(args.verify)
    if args.measure:
        if not certificate.changed:
            raise UsageError(f"--measure: {args.verify} kept nothing")
        chosen = scenario(certificate.scenario)
        check_server(args, chosen.workload, server_of(chosen, certificate.start))
        check_nodes(args, chosen.workload)
    result = Verified(
        str(args.verify),
        certificate.scenario,
        certificate.device,
        snapshot.created,
        mistakes(certificate),
    )
    result.trials = len(certificate.attempts) + (certificate.proof is not None)
    result.claimed = certificate.gain
    for mistake in result.mistakes:
        output.problem(mistake)
    if args.measure and not result.mistakes:
        trial_here = asyncio.run(until_interrupt(_measure(args, certificate)))
        if trial_here is None:
            return exit_code()
        result.measured, environment = trial_here
        result.differences = _differences(snapshot.environment, environment)
    output.show_result(args, result, lambda: report(result, certificate))
    holds = not result.mistakes and (result.measured is None or result.measured.verdict == "win")
    return OK if holds else FAILED


class Verified(msgspec.Struct):
    """The result of a check. `mistakes`: the claims that do not follow from the pairs. `measured`:
    the trial on this machine; None without --measure. `differences`: for each part of the
    environment that differs, its value in the snapshot and its value on this machine."""

    file: str
    scenario: str
    device: str
    created: str
    mistakes: list[str]
    trials: int = 0
    claimed: Speedup | None = None
    measured: Trial | None = None
    differences: dict[str, tuple[str, str]] = {}


def report(result: Verified, certificate: Certificate) -> Report:
    """Return the result as lines for the terminal."""
    if result.mistakes:
        return [
            text(
                (
                    f"{result.file}: does not hold: {count(len(result.mistakes), 'mistake')} in"
                    f" {count(result.trials, 'trial')}"
                ),
                "alert",
            )
        ]
    of = f"{result.scenario} on {result.device}, {result.created}"
    lines: Report = [
        text(
            visible(
                f"{result.file}: {of}: {count(result.trials, 'trial')}, all intervals and verdicts"
                " follow from the pairs"
            )
        ),
        labelled(
            "claimed",
            visible(gain(certificate) or "n/a: the total speedup was not measured in one trial"),
            column=10,
        ),
    ]
    lines += [
        labelled("differs", visible(f"{name}: {there} there, {here} here"), column=10)
        for name, (there, here) in result.differences.items()
    ]
    if result.measured is not None:
        trial = result.measured
        outcome = (
            f"n/a: {trial.error}"
            if trial.speedup is None
            else f"{measured(trial)}, {verdict(trial)}"
        )
        lines.append(
            labelled(
                "measured",
                visible(outcome),
                "good" if trial.verdict == "win" else "alert",
                column=10,
            )
        )
    return lines


async def _measure(args: argparse.Namespace, certificate: Certificate) -> tuple[Trial, Environment]:
    """Start the scenario with the settings of the start, and try all kept changes together. Return
    the trial and the environment of this machine. Raises CommandFailed."""
    chosen = scenario(certificate.scenario)
    async with session(args, CommandFailed) as engine:
        start: Knobs = {
            name: value
            for name, value in certificate.start.items()
            if name in chosen.workload.knobs
        }
        await engine.start(certificate.scenario, start)
        while (run := engine.view().run) is None or run.steady_from_s is None:
            if run is not None and run.state not in ("starting", "running"):
                raise SessionError(run.error or f"the run has {run.state}")
            await asyncio.sleep(0.25)
        trial = await engine.try_change(certificate.changed)
        await engine.end_run("finished")
        return trial, engine.environment()


def _differences(tuned: Environment, here: Environment) -> dict[str, tuple[str, str]]:
    """Return the differences between the machine of the snapshot and this machine."""
    differences = {}
    for name in ("cpu", "cores", "torch", "cuda", "driver"):
        there, now = getattr(tuned, name), getattr(here, name)
        if there != now:
            differences[name] = (str(there or "none"), str(now or "none"))
    return differences


def count(number: int, noun: str) -> str:
    """Return the number with its noun: `1 trial`, `2 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
