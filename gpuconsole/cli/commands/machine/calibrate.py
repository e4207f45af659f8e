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
from gpuconsole.machine.calibration import load, machine_of, save
from gpuconsole.machine.environment import DeviceChoiceError, choose_device, fingerprint, torch_version
from gpuconsole.model.machine.calibration import CalibrationRecord, Reached
from gpuconsole.model.machine.device import Device
from gpuconsole.model.machine.process import Process
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.text import visible
from gpuconsole.processes.once import read_devices
from gpuconsole.report.units import quantity
from gpuconsole.wire.events import Progress

DESCRIPTION = """Measure what this very machine reaches, and keep it: the second yardstick beside datasheets, in every later session.

Matrix products by precision, convolution, memory copy, transfers to and from a GPU (pinned and pageable), all-reduce, disk.
The best of many repeats counts; median and spread stand beside it. It takes about 20 s and wants an otherwise idle machine.
Kept in $XDG_CACHE_HOME/gpuconsole/calibration.json for this host, CPU, cores, GPUs, driver and torch: a change of any of them asks
for a new one. Ctrl-C keeps nothing (exit code 130). Exit code: 0 ok, 1 it failed, or --show and there is none, 2 bad usage."""
EXAMPLES = """examples:
  gpuconsole calibrate
  gpuconsole calibrate --device cpu
  gpuconsole calibrate --show
  gpuconsole calibrate --json | jq '.reached[] | {name, value, unit}'
"""
NA = "n/a"
DEFAULT_BUDGET_S = 1.0
BUSY_CORES = 0.3
"""An idle system's own processes and the clock's ticks stay below."""
PEAKS = {
    "gemm_fp32_flops_per_s": "fp32_flops_per_s",
    "gemm_tf32_flops_per_s": "tf32_flops_per_s",
    "gemm_bf16_flops_per_s": "bf16_flops_per_s",
    "gemm_fp16_flops_per_s": "fp16_flops_per_s",
    "conv_fp32_flops_per_s": "fp32_flops_per_s",
    "copy_bytes_per_s": "memory_bytes_per_s",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "calibrate",
        help="measure what this machine reaches, and keep it as a yardstick",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default=argparse.SUPPRESS, metavar="ID", help="gpu:N or cpu (default: the first GPU, else the CPU)")
    parser.add_argument("--json", action="store_true", help="the figures in SI units on stdout and nothing else there")
    parser.add_argument("--show", action="store_true", help="print the calibration that is kept, with its age; measure nothing")
    parser.add_argument("--budget", type=seconds, default=DEFAULT_BUDGET_S, metavar="S", help="seconds for each figure, about (default 1)")
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
        say(f"{problem}; going on with what is known")
    return show(environment, chosen, args.json) if args.show else measure(environment, chosen, state.processes, args)


def show(environment: Environment, chosen: Device, as_json: bool) -> int:
    record = load(environment, chosen.id)
    if record is None:
        say(f"{chosen.id} has not been calibrated on this machine with its present driver and torch: gpuconsole calibrate")
        return 1
    print(to_json(record) if as_json else as_text(record, chosen))
    return 0


def measure(environment: Environment, chosen: Device, processes: list[Process], args: argparse.Namespace) -> int:
    users = sum(1 for process in processes if process.device == chosen.id)
    if users:
        say(f"{users} other {'process has' if users == 1 else 'processes have'} {chosen.id}: these figures may be low")
    record = asyncio.run(_measure(environment, chosen, args.budget))
    if isinstance(record, int):
        return record
    print(to_json(record) if args.json else as_text(record, chosen))
    try:
        save(record)
    except OSError as error:
        say(f"these figures cannot be kept: {error.filename}: {error.strerror}")
        return 1
    return 0


async def _measure(environment: Environment, chosen: Device, budget_s: float) -> CalibrationRecord | int:
    """The record, or the exit code where there is none."""
    from gpuconsole.machine.other_load import OtherCores
    from gpuconsole.processes.one_shot import Interrupted, JobFailed, calibrate

    stop = asyncio.Event()
    on_interrupt(stop.set)
    stages = Stages(f"calibrating {chosen.id}  {visible(chosen.name)}")
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    load_1min, others = os.getloadavg()[0], OtherCores()
    try:
        reached = await calibrate(chosen, budget_s, stages.tell, stop)
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
    """What is being measured: one line that is drawn anew on a terminal, a line each elsewhere. On stderr."""

    def __init__(self, title: str) -> None:
        self._terminal = sys.stderr.isatty()
        print(title, file=sys.stderr, flush=True)

    def tell(self, progress: Progress) -> None:
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


# --- as text ------------------------------------------------------------------------------------------------


def as_text(record: CalibrationRecord, chosen: Device) -> str:
    """A table: every figure with its repeats, and its share of the datasheet where the device has one."""
    rows: list[tuple[str, ...]] = [("figure", "best", "median", "n", "spread", "datasheet", "share", "how")]
    rows += [_row(one, chosen) for one in record.reached]
    if not chosen.peaks.source:
        rows = [(*row[:5], row[7]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = range(1, len(widths) - 1)
    lines = [
        "  ".join(
            text.rjust(widths[column]) if column in numbers else text.ljust(widths[column]) for column, text in enumerate(row)
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*_head(record, chosen), "", *(f"  {line}" for line in lines)])


def _head(record: CalibrationRecord, chosen: Device) -> list[str]:
    machine = record.machine
    load_text = f", load {record.load_1min:.2g} at the start" if record.load_1min is not None else ""
    lines = [
        f"{record.device}  {visible(chosen.name)}  on {visible(machine.host)}",
        f"measured {record.created} ({age(record)})  torch {machine.torch}{f', driver {machine.driver}' if machine.driver else ''}{load_text}",
    ]
    if record.others_cores >= BUSY_CORES:
        lines.append(f"other processes used {record.others_cores:.1f} of {machine.cores} cores meanwhile: these figures may be low")
    if chosen.peaks.source:
        lines.append(f"datasheet: {chosen.peaks.source}")
    return lines


def _row(one: Reached, chosen: Device) -> tuple[str, ...]:
    if one.value is None or one.median is None:
        return (one.name, NA, "", "", "", "", "", visible(one.reason))
    peak = datasheet(one.name, chosen)
    return (
        one.name,
        quantity(one.value, one.unit),
        quantity(one.median, one.unit),
        str(one.n),
        f"{one.spread_ratio:.0%}" if one.spread_ratio is not None else "",
        quantity(peak, one.unit) if peak else "",
        f"{one.value / peak:.0%}" if peak else "",
        one.detail,
    )


def datasheet(name: str, chosen: Device) -> float | None:
    """The peak to hold a figure against, None where the datasheet has none."""
    if name == "allreduce_bytes_per_s":  # bus bandwidth goes one way, NVLink's figure counts both
        both_ways = chosen.peaks.nvlink_bytes_per_s if chosen.nvlink else None
        return both_ways / 2 if both_ways else None
    return getattr(chosen.peaks, PEAKS[name]) if name in PEAKS else None


def age(record: CalibrationRecord) -> str:
    """`3 days ago`."""
    passed_s = time.time() - datetime.datetime.fromisoformat(record.created).timestamp()
    for unit, length_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if passed_s >= length_s:
            count = int(passed_s // length_s)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
