"""`gpuconsole sweep`."""

from __future__ import annotations

import argparse
import asyncio

import msgspec

from gpuconsole.cli import options, output
from gpuconsole.cli.exits import exit_code
from gpuconsole.cli.files import save
from gpuconsole.cli.job import check_job, check_restarts, headless_job, run_if_possible
from gpuconsole.cli.options import NO_RESTARTS, CommandFailed, Option, UsageError, check
from gpuconsole.cli.scaling import scale, scales
from gpuconsole.cli.scenario import (
    assignments,
    check_server,
    scenario,
    scenario_of,
    server_of,
    server_options,
)
from gpuconsole.cli.session import session, until_interrupt
from gpuconsole.cli.values import writable
from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.experiments.sweep import Sweeper, points
from gpuconsole.model.experiments import Sweep
from gpuconsole.model.knobs.catalogue import find
from gpuconsole.model.knobs.knob import KnobError, Knobs, Value
from gpuconsole.model.scenario import Scenario, job_scenario
from gpuconsole.report.experiments import sweep_report
from gpuconsole.report.parts import printed

REPEAT = 10
HELP = "measure throughput over the values of settings"
DESCRIPTION = """Measure all settings in turn, many times, so that changes of the machine affect all
settings alike. Settings that apply live share a worker. Each other setting has its own worker,
which pauses while other settings are measured. The intervals of all settings hold together with
95 % probability, also with --stop-settled and after Ctrl-C.

Numbers of processes (--vary nproc=1,2,4) run one after another, --duration seconds each, with the
same batch in every process (weak scaling). The table shows the scaling efficiency: the throughput
of N processes as a share of N times the throughput of one. Where --vary has nproc, --json prints
the snapshot of the session."""
EXAMPLES = """examples:
  gpuconsole sweep train-gpt --vary batch_size=1,2,4,8
  gpuconsole sweep data-starved --vary num_workers=0,1,2 --vary prefetch_factor=2,8
      one at a time, around the scenario's own values
  gpuconsole sweep train-gpt --vary batch_size=4,8 --vary precision=fp32,bf16 --grid
      every combination
  gpuconsole sweep ddp-small-batch --vary nproc=1,2,4        scaling efficiency over processes
  gpuconsole sweep serve-chat --vary concurrency=1,2,4,8,16 --repeat 10 --json > sweep.json
  gpuconsole sweep --vary num_workers=0,2,4 --allow-loader -- python train.py
      on the steps of your own job, live
  gpuconsole sweep --vary batch_size=8,16 --restart-knob 'batch_size={--bs}' -- python train.py
      a start for each block
"""
NO_NPROC = {
    "varies nproc": "does not go with --vary nproc=, which runs each number of processes once"
}
NPROC_ONLY = {
    "varies others": "goes with --vary nproc= alone; other settings are measured in --repeat blocks"
}
OPTIONS = (
    options.SCENARIO,
    Option(
        "--vary",
        "values of a setting; may be repeated",
        "NAME=A,B,...",
        repeated=True,
        required=True,
        completes="knob=",
    ),
    options.SET._replace(help="a setting that is the same at all points"),
    Option("--grid", "every combination, instead of one setting at a time", refused=NO_NPROC),
    Option("--repeat", f"blocks of every setting (default {REPEAT})", "N", int, NO_NPROC),
    options.DURATION._replace(
        help="with --vary nproc=: seconds from the first step of each (default 20)",
        refused={**options.DURATION.refused, **NPROC_ONLY},
    ),
    Option(
        "--stop-settled",
        "stop measuring a setting as soon as it is proven not to be the best",
        refused={**NO_RESTARTS, **NO_NPROC},
    ),
    options.SNAPSHOT._replace(help="write the sweep, with its environment, as a snapshot"),
    options.JSON._replace(help="the sweep on stdout and nothing else there"),
    options.SUMMARY,
    options.RESTART_KNOB,
    options.ALLOW_LOADER,
    options.SERVING,
    options.WATCHING,
)


def run(args: argparse.Namespace) -> int:
    if args.job:
        return run_on_job(args)
    chosen = scenario(scenario_of(args))
    knobs = assignments(args.knobs, chosen)
    vary = all_varied(args, chosen)
    check_server(args, chosen.workload, "" if "server" in vary else server_of(chosen, knobs))
    if set(vary) == {"nproc"} and scales(chosen):
        check(args, "varies nproc")
        return scale(args, knobs, [int(value) for value in vary["nproc"]])
    check(args, "varies others")
    args.repeat = args.repeat or REPEAT
    writable(args, "--snapshot")
    writable(args, "--record")
    return asyncio.run(_main(args, chosen, knobs, vary))


def run_on_job(args: argparse.Namespace) -> int:
    """Sweep on the steps of the user's own job while it runs; returns the exit code of the job.
    Raises UsageError."""
    check_job(args)
    vary = all_varied(args, job_scenario("the job"))
    args.repeat = args.repeat or REPEAT
    from gpuconsole.cli.job_work import SweepJob, sweep_by_restarting

    if args.restart_knobs:
        check_restarts(args, "--vary", vary, "sweep")
        return run_if_possible(args, lambda: sweep_by_restarting(args, vary))
    return headless_job(args, SweepJob(args, vary))


def all_varied(args: argparse.Namespace, chosen: Scenario) -> dict[str, list[Value]]:
    """The values of every --vary, by knob; raises UsageError."""
    if args.repeat is not None and args.repeat < 2:
        raise UsageError(f"--repeat {args.repeat}: must be 2 or more")
    vary: dict[str, list[Value]] = {}
    for text in args.vary:
        name, values = varied(text, chosen)
        if name in vary:
            raise UsageError(
                f"--vary {text}: {name} is varied already; write all its values after one --vary"
            )
        vary[name] = values
    return vary


def varied(text: str, chosen: Scenario) -> tuple[str, list[Value]]:
    """`NAME=A,B,...` as typed; raises UsageError."""
    name, equals, texts = text.partition("=")
    try:
        knob = find(name, chosen.workload.knobs, chosen.name)
        values = list(dict.fromkeys(knob.parse(value) for value in texts.split(",") if value))
    except KnobError as error:
        raise UsageError(str(error)) from None
    if not equals or len(values) < 2:
        raise UsageError(f"--vary {text}: expected NAME=A,B,... with two values or more")
    return name, values


async def _main(
    args: argparse.Namespace, chosen: Scenario, knobs: Knobs, vary: dict[str, list[Value]]
) -> int:
    async with session(args, CommandFailed) as engine:
        device = engine.device()
        base = {**chosen.knobs_on(device), **knobs}
        serving = ServingChoice(server_options(args), args.slo)
        serving.check_torch(chosen, base)
        sweeper = Sweeper(chosen, base, device, serving, engine.devices)
        newest: list[Sweep] = []
        settings = points(vary, base, args.grid)
        try:  # after Ctrl-C, what was measured until then is printed
            await until_interrupt(
                sweeper.run(
                    settings, args.repeat, args.stop_settled, lambda sweep: _progress(sweep, newest)
                )
            )
        finally:
            await sweeper.close()
        if not newest:
            return exit_code(failed=True)
        saved = save(msgspec.structs.replace(engine.snapshot(), sweeps=newest), args.snapshot)
        report = sweep_report(newest[0], tuple(vary))
        for line in printed(report).splitlines():  # a recording has no event for sweeps
            engine.note(line)
        output.show_result(args, newest[0], lambda: report)
        return exit_code(not saved or any(point.error for point in newest[0].points))


def _progress(sweep: Sweep, newest: list[Sweep]) -> None:
    newest[:] = [sweep]
    done = sum(len(point.rates) for point in sweep.points)
    output.progress(
        f"{sweep.elapsed_s:5.0f} s  {done} of {sweep.repeats * len(sweep.points)} blocks"
    )
