"""`gpuconsole sweep`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec

from gpuconsole.cli import output
from gpuconsole.cli.commands.experiments.scaling import scale, scales
from gpuconsole.cli.exits import FAILED, exit_code, on_interrupt
from gpuconsole.cli.job import headless_job, run_if_possible
from gpuconsole.cli.options.console import add_console_options, record_path
from gpuconsole.cli.options.engine import live_engine, open_engine
from gpuconsole.cli.options.files import add_headless_options, to_json, writable
from gpuconsole.cli.options.job import add_restart_option, add_summary_option, check_options, refuse_job_options
from gpuconsole.cli.options.scenario import add_scenario, assignments, scenario, scenario_of, server_of
from gpuconsole.cli.options.serving import add_serving_options, check_server, objective, server_options
from gpuconsole.cli.options.usage import UsageError, refuse_given, seconds
from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.experiments.sweep import Sweeper, points
from gpuconsole.model.experiments import Sweep
from gpuconsole.model.files import write_whole
from gpuconsole.model.knobs.catalogue import find
from gpuconsole.model.knobs.knob import KnobError, Knobs, Value
from gpuconsole.model.scenario import Scenario, job_scenario
from gpuconsole.model.snapshot import encode
from gpuconsole.report.experiments import sweep_report
from gpuconsole.report.parts import printed
from gpuconsole.session.api import SessionError

REPEAT = 10
DESCRIPTION = """Measure all settings in turn, many times, so that changes of the machine affect all settings alike. Settings that apply live share a worker. Each
other setting has its own worker, which pauses while other settings are measured. The intervals of all settings hold together with 95 %
probability, also with --stop-settled and after Ctrl-C.

Numbers of processes (--vary nproc=1,2,4) run one after another, --duration seconds each, with the same batch in every process (weak scaling).
The table shows the scaling efficiency: the throughput of N processes as a share of N times the throughput of one. Where --vary has
nproc, --json prints the snapshot of the session."""
EXAMPLES = """examples:
  gpuconsole sweep train-gpt --vary batch_size=1,2,4,8
  gpuconsole sweep data-starved --vary num_workers=0,1,2 --vary prefetch_factor=2,8      one at a time, around the scenario's own values
  gpuconsole sweep train-gpt --vary batch_size=4,8 --vary precision=fp32,bf16 --grid     every combination
  gpuconsole sweep ddp-small-batch --vary nproc=1,2,4        scaling efficiency over processes
  gpuconsole sweep serve-chat --vary concurrency=1,2,4,8,16 --repeat 10 --json > sweep.json
  gpuconsole sweep --vary num_workers=0,2,4 -- python train.py                           on the steps of your own job, live
  gpuconsole sweep --vary batch_size=8,16 --restart-knob 'batch_size={--batch-size}' --repeat 4 -- python train.py     a start for each block
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "sweep",
        help="measure throughput over the values of knobs",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    add_scenario(parser)
    parser.add_argument(
        "--vary", action="append", default=[], required=True, metavar="KNOB=A,B,...", help="values of a knob; may be repeated"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KNOB=VALUE", dest="knobs", help="a knob that is the same in all settings"
    )
    parser.add_argument("--grid", action="store_true", help="every combination, instead of one knob at a time")
    parser.add_argument("--repeat", type=int, metavar="N", help=f"blocks of every setting (default {REPEAT})")
    parser.add_argument(
        "--duration", type=seconds, metavar="S", help="with --vary nproc=: seconds from the first step of each (default 20)"
    )
    parser.add_argument("--stop-settled", action="store_true", help="stop measuring a setting as soon as it is proven not to be the best")
    add_headless_options(parser, "write the sweep, with its environment, as a snapshot", "the sweep on stdout and nothing else there")
    add_summary_option(parser)
    add_restart_option(parser)
    add_serving_options(parser)
    add_console_options(parser.add_argument_group("watching devices"))
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    if args.job:
        return run_on_job(args)
    refuse_job_options(args)
    chosen = scenario(scenario_of(args))
    knobs = assignments(args.knobs, chosen)
    vary = all_varied(args, chosen)
    if set(vary) == {"nproc"} and scales(chosen):
        refuse_given(args, "does not go with --vary nproc=, which runs each number of processes once", "repeat", "grid", "stop_settled")
        return scale(args, knobs, [int(value) for value in vary["nproc"]])
    refuse_given(args, "goes with --vary nproc= alone; other knobs are measured in --repeat blocks", "duration")
    args.repeat = args.repeat or REPEAT
    check_server(args, chosen.workload, "" if "server" in vary else server_of(chosen, knobs))
    target = writable(args.snapshot, "--snapshot")
    record_path(args)
    try:
        return asyncio.run(_main(args, chosen, knobs, vary, target))
    except SessionError as error:
        output.problem(str(error))
        return FAILED


def run_on_job(args: argparse.Namespace) -> int:
    """Sweep on the steps of the user's own job while it runs; returns the exit code of the job. Raises UsageError."""
    check_options(args)
    vary = all_varied(args, job_scenario(args.job[0]))
    args.repeat = args.repeat or REPEAT
    from gpuconsole.cli.job_work import SweepJob, sweep_by_restarting

    if args.restart_knobs:
        mapped = [one.knob for one in args.restart_knobs]
        if missing := [name for name in vary if name not in mapped]:
            raise UsageError(
                f"--vary {missing[0]}: needs --restart-knob '{missing[0]}={{FLAG}}' too, because this sweep starts the command again"
            )
        target = writable(args.snapshot, "--snapshot")
        return run_if_possible(args, lambda: sweep_by_restarting(args, vary, target))
    return headless_job(args, SweepJob(args, vary))


def all_varied(args: argparse.Namespace, chosen: Scenario) -> dict[str, list[Value]]:
    """The values of every --vary, by knob; raises UsageError."""
    if args.repeat is not None and args.repeat < 2:
        raise UsageError(f"--repeat {args.repeat}: must be 2 or more")
    found: dict[str, list[Value]] = {}
    for word in args.vary:
        name, values = varied(word, chosen)
        if name in found:
            raise UsageError(f"--vary {word}: {name} is varied already; write all its values after one --vary")
        found[name] = values
    return found


def varied(word: str, chosen: Scenario) -> tuple[str, list[Value]]:
    """`KNOB=A,B,...` as typed; raises UsageError."""
    name, equals, values = word.partition("=")
    try:
        knob = find(name, chosen.workload.knobs, chosen.name)
        found = list(dict.fromkeys(knob.parse(value) for value in values.split(",") if value))
    except KnobError as error:
        raise UsageError(str(error)) from None
    if not equals or len(found) < 2:
        raise UsageError(f"--vary {word}: expected KNOB=A,B,... with two values or more")
    return name, found


async def _main(args: argparse.Namespace, chosen: Scenario, knobs: Knobs, vary: dict[str, list[Value]], target: Path | None) -> int:
    engine = live_engine(args)
    try:
        await open_engine(engine, record_path(args))
        device = engine.device()
        base = {**chosen.knobs_on(device), **knobs}
        serving = ServingChoice(server_options(args), objective(args))
        serving.check_torch(chosen, base)
        sweeper = Sweeper(chosen, base, device, serving, engine.devices)
        newest: list[Sweep] = []
        sweeping = asyncio.create_task(
            sweeper.run(points(vary, base, args.grid), args.repeat, args.stop_settled, lambda sweep: _progress(sweep, newest))
        )
        on_interrupt(sweeping.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # what was measured until then is printed
                await sweeping
        finally:
            await sweeper.close()
        if not newest:
            return exit_code(failed=True)
        if target is not None:
            write_whole(target, encode(msgspec.structs.replace(engine.snapshot(), sweeps=newest)))
        report = sweep_report(newest[0], tuple(vary))
        for line in printed(report).splitlines():  # a recording has no event for sweeps
            engine.note(line)
        if args.json:
            print(to_json(newest[0]))
        else:
            output.show(report)
        return exit_code(any(point.error for point in newest[0].points))
    finally:
        await engine.close()


def _progress(sweep: Sweep, newest: list[Sweep]) -> None:
    newest[:] = [sweep]
    if output.quiet():
        return
    done = sum(len(point.rates) for point in sweep.points)
    with contextlib.suppress(OSError):
        print(f"{sweep.elapsed_s:5.0f} s  {done} of {sweep.repeats * len(sweep.points)} blocks", file=sys.stderr, flush=True)
