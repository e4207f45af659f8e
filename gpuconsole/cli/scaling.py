"""`gpuconsole sweep --vary nproc=`: the same work on 1, 2, ... N processes, one number after the
other."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Collection

from gpuconsole.cli import output
from gpuconsole.cli.exits import exit_code, on_interrupt
from gpuconsole.cli.files import save
from gpuconsole.cli.headless import TICK_S, ProgressLines
from gpuconsole.cli.scenario import scenario
from gpuconsole.cli.session import pause, session
from gpuconsole.cli.values import writable
from gpuconsole.engine.children.worker import START_S
from gpuconsole.experiments.session import LiveSession
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.snapshot import encode
from gpuconsole.report.experiments import scaling_table

DURATION_S = 20.0
"""Default of --duration: seconds that each run lasts, counted from its first step."""


def scales(chosen: Scenario) -> bool:
    """Whether the scenario can run on several numbers of processes."""
    return {"nproc", "sharding"} <= set(chosen.workload.knobs)


def scale(args: argparse.Namespace, knobs: Knobs, numbers: Collection[int]) -> int:
    """Run `args.scenario` on each number of processes, one number after the other; returns the exit
    code. Every process has the same batch (weak scaling). One process trains alone; several
    exchange gradients by the scenario's `sharding` (ddp, where the scenario has none)."""
    writable(args, "--snapshot")
    writable(args, "--record")
    return asyncio.run(_main(args, knobs, sorted({1, *numbers})))


async def _main(args: argparse.Namespace, knobs: Knobs, numbers: list[int]) -> int:
    interrupted = asyncio.Event()
    on_interrupt(interrupted.set)
    async with session(args) as engine:
        progress = ProgressLines(sys.stderr)
        try:
            for nproc in numbers:
                if not interrupted.is_set():
                    settings = with_nproc(args.scenario, knobs, nproc, engine.device().is_gpu)
                    await _run(
                        engine,
                        args.scenario,
                        settings,
                        args.duration or DURATION_S,
                        progress,
                        interrupted,
                    )
            return _report(engine, args)
        finally:
            progress.done()


def with_nproc(name: str, knobs: Knobs, nproc: int, is_gpu: bool) -> Knobs:
    """`knobs` for `nproc` processes: a single process, or several processes that exchange
    gradients."""
    asked = {**scenario(name).knobs_for("gpu" if is_gpu else "cpu"), **knobs}
    sharding = "none" if nproc == 1 else asked["sharding"] if asked["sharding"] != "none" else "ddp"
    return {**knobs, "nproc": nproc, "sharding": sharding, "tensor_parallel": 1}


async def _run(
    engine: LiveSession,
    name: str,
    knobs: Knobs,
    duration_s: float,
    progress: ProgressLines,
    interrupted: asyncio.Event,
) -> None:
    """Run until the time is over, the run ends, or the user interrupts."""
    await engine.start(name, knobs)
    begun = time.monotonic()
    while not interrupted.is_set():
        view = engine.view()
        if view.state in ("failed", "finished", "stopped"):
            return
        if view.running_s >= duration_s:
            break
        if view.running_s <= 0 and time.monotonic() - begun > START_S:
            await engine.end_run("failed", f"no step within {START_S:g} s")
            return
        progress.show(view, view.running_s, duration_s)
        await pause(interrupted, TICK_S)
    await engine.end_run("stopped" if interrupted.is_set() else "finished")


def _report(engine: LiveSession, args: argparse.Namespace) -> int:
    snapshot = engine.snapshot()
    failed = any(run.state == "failed" for run in snapshot.runs)
    failed = not save(snapshot, args.snapshot) or failed
    if args.json:
        sys.stdout.buffer.write(encode(snapshot))
    else:
        output.show([scaling_table(snapshot.runs)])
    for run in snapshot.runs:
        if run.state == "failed":
            output.problem(f"nproc {run.knobs['nproc']}: {run.error}")
    return exit_code(failed)
