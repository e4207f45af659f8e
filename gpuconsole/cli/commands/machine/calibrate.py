"""`gpuconsole calibrate`."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import sys
import time

from gpuconsole.cli.interrupt import INTERRUPTED, on_interrupt
from gpuconsole.cli.options.console import device
from gpuconsole.cli.options.files import to_json
from gpuconsole.cli.options.usage import UsageError, seconds
from gpuconsole.machine.calibration import cache_path, load, machine_of, save
from gpuconsole.machine.choice import DeviceChoiceError, choose_device
from gpuconsole.machine.environment import fingerprint, torch_version
from gpuconsole.model.machine.calibration import CalibrationRecord
from gpuconsole.model.machine.device import Device
from gpuconsole.model.machine.process import Process
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.text import visible
from gpuconsole.processes.once import read_devices
from gpuconsole.report.machine.calibration import calibration_report
from gpuconsole.report.parts import printed
from gpuconsole.wire.events import Progress

DESCRIPTION = f"""Measure the peak rates of this machine and keep the figures. Later sessions compare with them, in addition to the datasheet.

The calibration measures matrix products by precision, convolution, memory copy, transfers to and from a GPU (pinned and pageable),
all-reduce and disk. The best of many repeats counts; median and spread are shown, too. It takes about 20 s. The machine should be idle.
The figures are kept in {cache_path()}
for this host, CPU, cores, GPUs, driver and torch. If any of these changes, calibrate again.

Exit code: 0 ok, 1 the calibration failed or --show found none, 2 bad usage, 130 interrupted (nothing is kept)."""
EXAMPLES = """examples:
  gpuconsole calibrate
  gpuconsole calibrate --device cpu
  gpuconsole calibrate --show
  gpuconsole calibrate --json | jq '.reached[] | {name, value, unit}'
"""
DEFAULT_BUDGET_S = 1.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "calibrate",
        help="measure the peak rates of this machine, and keep the figures",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", default=argparse.SUPPRESS, metavar="ID", help="gpu:N or cpu (default: the first GPU, or the CPU if there is no GPU)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in SI units, and nothing else on stdout")
    parser.add_argument("--show", action="store_true", help="print the kept calibration with its age; measure nothing")
    parser.add_argument(
        "--budget", type=seconds, default=DEFAULT_BUDGET_S, metavar="S", help="approximate seconds for each figure (default 1)"
    )
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    if not args.show and torch_version() is None:
        raise UsageError('torch is not installed: pip install "gpuconsole[torch]"')
    state, problem = read_devices()
    environment = fingerprint(state.devices, state.driver, state.cuda)
    try:
        chosen = choose_device(state.devices, device(args), state.lost)
    except DeviceChoiceError as error:
        raise UsageError(str(error)) from None
    if problem:
        say(f"{problem}; continuing without the driver")
    return show(environment, chosen, args.json) if args.show else measure(environment, chosen, state.processes, args)


def show(environment: Environment, chosen: Device, as_json: bool) -> int:
    record = load(environment, chosen.id)
    if record is None:
        say(f"there is no calibration of {chosen.id} with the present driver and torch: run `gpuconsole calibrate`")
        return 1
    print(to_json(record) if as_json else printed(calibration_report(record, chosen, time.time())))
    return 0


def measure(environment: Environment, chosen: Device, processes: list[Process], args: argparse.Namespace) -> int:
    users = sum(1 for process in processes if process.device == chosen.id)
    if users:
        say(f"{users} other {'process uses' if users == 1 else 'processes use'} {chosen.id}: the figures may be too low")
    record = asyncio.run(_measure(environment, chosen, args.budget))
    if isinstance(record, int):
        return record
    print(to_json(record) if args.json else printed(calibration_report(record, chosen, time.time())))
    try:
        save(record)
    except OSError as error:
        say(f"cannot keep the figures: {error.filename}: {error.strerror}")
        return 1
    return 0


async def _measure(environment: Environment, chosen: Device, budget_s: float) -> CalibrationRecord | int:
    """The record, or the exit code if there is no record."""
    from gpuconsole.machine.other_load import OtherCores
    from gpuconsole.processes.one_shot import Interrupted, JobFailed, calibrate

    stop = asyncio.Event()
    on_interrupt(stop.set)
    stages = Stages(f"calibrating {chosen.id}  {visible(chosen.name)}")
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    load_1min, others = os.getloadavg()[0], OtherCores()
    try:
        reached = await calibrate(chosen, budget_s, stages.show, stop)
    except Interrupted:
        stages.done()
        say("interrupted: nothing is kept")
        return INTERRUPTED
    except JobFailed as error:
        stages.done()
        say(str(error))
        return 1
    stages.done()
    return CalibrationRecord(machine_of(environment), chosen.id, created, reached, load_1min, others.mean())


class Stages:
    """Progress on stderr: one line that is drawn again on a terminal, one line per stage elsewhere."""

    def __init__(self, title: str) -> None:
        self._terminal = sys.stderr.isatty()
        print(title, file=sys.stderr, flush=True)

    def show(self, progress: Progress) -> None:
        text = progress.detail if progress.stage == "calibrating" else f"{progress.stage} {progress.detail}"
        self._write(f"\r\033[K  {text}" if self._terminal else f"  {text}\n")

    def done(self) -> None:
        if self._terminal:
            self._write("\r\033[K")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def say(text: str) -> None:
    print(f"gpuconsole: {visible(text)}", file=sys.stderr, flush=True)
