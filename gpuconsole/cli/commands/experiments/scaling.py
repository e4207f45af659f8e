"""`gpuconsole scaling`, the old name of `gpuconsole sweep --vary nproc=`: the same work on 1, 2, ... N processes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Collection
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.exits import exit_code, on_interrupt
from gpuconsole.cli.headless import TICK_S
from gpuconsole.cli.options.console import add_console_options, record_path
from gpuconsole.cli.options.engine import live_engine, open_engine
from gpuconsole.cli.options.files import writable
from gpuconsole.cli.options.scenario import assignments, scenario
from gpuconsole.cli.options.usage import UsageError, seconds
from gpuconsole.cli.progress import Progress
from gpuconsole.engine.children.worker import START_S
from gpuconsole.experiments.session import LiveSession
from gpuconsole.model.knobs.catalogue import CATALOGUE, KnobError, Knobs
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.snapshot import encode
from gpuconsole.report.experiments import scaling_table
from gpuconsole.session.api import SessionError

DURATION_S = 20.0
EXAMPLES = """examples:
  gpuconsole sweep ddp-small-batch --vary nproc=1,2         the same, under its present name
  gpuconsole scaling ddp-small-batch --nproc 1,2,4,8
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the old name, which is not in the list of commands."""
    parser = commands.add_parser("scaling", description="The old name of `gpuconsole sweep SCENARIO --vary nproc=1,2`.", epilog=EXAMPLES)
    parser.add_argument("scenario", metavar="SCENARIO", help="a scenario that has the knobs `sharding` and `nproc`")
    parser.add_argument("--nproc", type=counts, default=(1, 2), metavar="N,N,...", help="numbers of processes (default 1,2)")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="knobs", help="set a knob; may be repeated")
    parser.add_argument("--duration", type=seconds, metavar="S", help="seconds from the first step of each (default 20)")
    parser.add_argument("--snapshot", type=Path, metavar="FILE", help="write the session as JSON when it ends")
    parser.add_argument("--json", action="store_true", help="the snapshot on stdout and nothing else there")
    add_console_options(parser.add_argument_group("watching devices"))
    parser.set_defaults(handler=run)


def counts(text: str) -> tuple[int, ...]:
    """`1,2,4` for argparse."""
    try:
        found = sorted({int(CATALOGUE["nproc"].check(int(part))) for part in text.split(",")})
    except (ValueError, KnobError):
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers of processes from 1 to 64, such as 1,2,4") from None
    return tuple(found)


def run(args: argparse.Namespace) -> int:
    chosen = scenario(args.scenario)
    if not scales(chosen):
        raise UsageError(f"{chosen.name} runs in one process: {chosen.workload.name} has no knobs nproc and sharding")
    knobs = assignments(args.knobs, chosen)
    output.note(f"this command is now: gpuconsole sweep {args.scenario} --vary nproc={','.join(map(str, args.nproc))}")
    return scale(args, knobs, args.nproc)


def scales(chosen: Scenario) -> bool:
    """Whether the scenario can run on several numbers of processes."""
    return {"nproc", "sharding"} <= set(chosen.workload.knobs)


def scale(args: argparse.Namespace, knobs: Knobs, numbers: Collection[int]) -> int:
    """Run `args.scenario` on each number of processes, one number after the other; returns the exit code. Every process has the same batch (weak
    scaling). One process trains alone; several exchange gradients by the scenario's `sharding` (ddp, where the scenario has no sharding)."""
    snapshot = writable(args.snapshot, "--snapshot")
    record_path(args)
    return asyncio.run(_main(args, knobs, sorted({1, *numbers}), snapshot))


async def _main(args: argparse.Namespace, knobs: Knobs, numbers: list[int], path: Path | None) -> int:
    engine, progress, interrupted = live_engine(args), Progress(sys.stderr), asyncio.Event()
    on_interrupt(interrupted.set)
    try:
        await open_engine(engine, record_path(args))
        for nproc in numbers:
            if not interrupted.is_set():
                await _run(
                    engine,
                    args.scenario,
                    with_nproc(args.scenario, knobs, nproc, engine.device().is_gpu),
                    args.duration or DURATION_S,
                    progress,
                    interrupted,
                )
        return _report(engine, args, path)
    except SessionError as error:
        raise UsageError(str(error)) from None
    finally:
        progress.done()
        await engine.close()


def with_nproc(name: str, knobs: Knobs, nproc: int, is_gpu: bool) -> Knobs:
    """`knobs` for `nproc` processes: a single process, or several processes that exchange gradients."""
    asked = {**scenario(name).knobs_for("gpu" if is_gpu else "cpu"), **knobs}
    sharding = "none" if nproc == 1 else asked["sharding"] if asked["sharding"] != "none" else "ddp"
    return {**knobs, "nproc": nproc, "sharding": sharding, "tensor_parallel": 1}


async def _run(engine: LiveSession, name: str, knobs: Knobs, duration_s: float, progress: Progress, interrupted: asyncio.Event) -> None:
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
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(interrupted.wait(), TICK_S)
    await engine.end_run("stopped" if interrupted.is_set() else "finished")


def _report(engine: LiveSession, args: argparse.Namespace, path: Path | None) -> int:
    snapshot = engine.snapshot()
    failed = any(run.state == "failed" for run in snapshot.runs)
    if path is not None:
        engine.export(path)
    if args.json:
        sys.stdout.buffer.write(encode(snapshot))
    else:
        output.show([scaling_table(snapshot.runs)])
    for run in snapshot.runs:
        if run.state == "failed":
            output.problem(f"nproc {run.knobs['nproc']}: {run.error}")
    return exit_code(failed)
