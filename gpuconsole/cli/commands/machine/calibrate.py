"""`gpuconsole calibrate`."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import sys
import time

from gpuconsole.cli import output
from gpuconsole.cli.exits import OK, exit_code, on_interrupt
from gpuconsole.cli.options import DEVICE, JSON, CommandFailed, Option, UsageError
from gpuconsole.cli.values import chosen_device
from gpuconsole.engine.children.once import read_devices
from gpuconsole.host.environment import cache_path, fingerprint, load, machine_of, save
from gpuconsole.host.installation import install_command, torch_version
from gpuconsole.host.settings import seconds
from gpuconsole.model.machine import CalibrationRecord, Device, Process
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.text import visible
from gpuconsole.report.machine.environment import calibration_report
from gpuconsole.wire.events import Progress

HELP = "measure what this machine reaches, and keep it"
DESCRIPTION = f"""Measure the peak rates of this machine and keep the numbers. Later sessions
compare with them, in addition to the datasheet.

The calibration measures matrix products by precision, convolution, memory copy and triad, the
reading of weights (matrix times vector), transfers to and from a GPU (pinned and pageable),
all-reduce and disk. The best of many repeats counts; median and spread are shown, too. On a CPU the
faster of two numbers of threads counts: all cores, or all but one. It takes about 35 s. The machine
should be idle. The numbers are kept in {cache_path()} for this host, CPU, cores, GPUs, driver and
torch. If any of these changes, calibrate again.

Exit code 1: the calibration failed, or --show found none. Ctrl-C keeps nothing."""
EXAMPLES = """examples:
  gpuconsole calibrate
  gpuconsole calibrate --device cpu
  gpuconsole calibrate --show
  gpuconsole calibrate --json | jq '.reached[] | {name, value, unit}'
"""
DEFAULT_BUDGET_S = 1.0


OPTIONS = (
    DEVICE,
    JSON._replace(help="print the numbers as JSON in SI units, and nothing else on stdout"),
    Option("--show", "print the kept calibration with its age; measure nothing"),
    Option(
        "--budget", "approximate seconds for each number (default 1)", "S", seconds,
        {"--show": "does not go with --show, which measures nothing"},
    ),
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if not args.show and torch_version() is None:
        raise UsageError(f"torch is not installed: {install_command('torch')}")
    state, problem = read_devices()
    environment = fingerprint(state.devices, state.driver, state.cuda)
    chosen = chosen_device(state, args)
    if problem:
        output.print_note(f"{problem}; continuing without the driver")
    record = (
        load(environment, chosen.id)
        if args.show
        else measured(environment, chosen, state.processes, args)
    )
    if record is None and args.show:
        raise CommandFailed(
            f"there is no calibration of {chosen.id} with the current driver and torch: run"
            " `gpuconsole calibrate`"
        )
    if record is None:
        output.problem("interrupted: nothing is kept")
        return exit_code()
    output.show_result(args, record, lambda: calibration_report(record, chosen, time.time()))
    if not args.show:
        try:
            save(record)
        except OSError as error:
            raise CommandFailed(
                f"cannot keep the numbers: {error.filename}: {error.strerror}"
            ) from None
    return OK


def measured(
    environment: Environment, chosen: Device, processes: list[Process], args: argparse.Namespace
) -> CalibrationRecord | None:
    """A new record; None after Ctrl-C. Raises CommandFailed."""
    users = sum(1 for process in processes if process.device == chosen.id)
    if users:
        output.print_note(
            f"{users} other {'process uses' if users == 1 else 'processes use'} {chosen.id}: the"
            " numbers may be too low"
        )
    return asyncio.run(_measure(environment, chosen, args.budget or DEFAULT_BUDGET_S))


async def _measure(
    environment: Environment, chosen: Device, budget_s: float
) -> CalibrationRecord | None:
    from gpuconsole.engine.children.one_shot import Interrupted, JobFailed, calibrate
    from gpuconsole.host.load import OtherCores

    stop = asyncio.Event()
    on_interrupt(stop.set)
    stages = Stages(f"calibrating {chosen.id}  {visible(chosen.name)}")
    created = (
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    )
    load_1min, others = os.getloadavg()[0], OtherCores()
    try:
        reached = await calibrate(chosen, budget_s, stages.show, stop)
    except Interrupted:
        return None
    except JobFailed as error:
        raise CommandFailed(str(error)) from None
    finally:
        stages.done()
    return CalibrationRecord(
        machine_of(environment), chosen.id, created, reached, load_1min, others.mean()
    )


class Stages:
    """Progress on stderr: one line that is drawn again on a terminal, one line per stage elsewhere.
    --quiet leaves it out."""

    def __init__(self, title: str) -> None:
        self._terminal = sys.stderr.isatty()
        self._write(f"{title}\n")

    def show(self, progress: Progress) -> None:
        text = (
            progress.detail
            if progress.stage == "calibrating"
            else f"{progress.stage} {progress.detail}"
        )
        self._write(f"\r\033[K  {text}" if self._terminal else f"  {text}\n")

    def done(self) -> None:
        if self._terminal:
            self._write("\r\033[K")

    def _write(self, text: str) -> None:
        if output.quiet():
            return
        sys.stderr.write(text)
        sys.stderr.flush()
