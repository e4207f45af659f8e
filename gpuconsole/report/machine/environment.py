"""The machine and the software of a session, what kind of device its figures belong to, and a
calibration with every repeat."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from gpuconsole.model import units
from gpuconsole.model.machine import CalibrationRecord, Device, Reached
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.model.text import plain, visible
from gpuconsole.model.units import NA, percent, quantity
from gpuconsole.report.cells import Segment, spans
from gpuconsole.report.machine.columns import properties
from gpuconsole.report.parts import BLANK, Column, Report, Table, labelled, text

# --- the machine and the software of a session, and what kind of device its figures belong to -----


def device_kinds(snapshot: Snapshot) -> list[str]:
    """What the figures of a session belong to: a CPU, a simulated GPU, a recording. Empty for a
    live session on GPUs."""
    used = {run.device for run in snapshot.runs if not run.watched} | {
        sweep.device for sweep in snapshot.sweeps
    }
    devices = [device for device in snapshot.environment.devices if device.id in used]
    kinds = []
    if "cpu" in used:
        kinds.append("CPU: no number is GPU data")
    if any(device.is_gpu and device.name.startswith("simulated") for device in devices):
        kinds.append("simulated GPU: no number is GPU data")
    if snapshot.recording:
        kinds.append("recording: a replay of an earlier session")
    return kinds


def environment_report(
    environment: Environment, used: Sequence[str], runs: Sequence[Run] = ()
) -> Report:
    """The devices in use, the machine, the software. `used`: ids of devices. With several processes
    all GPUs are listed, because a snapshot does not say which of them the processes use. A part
    that is not known reads n/a."""
    if runs and all(run.client for run in runs):
        return [labelled("machine", f"{units.NA}: the file of the client does not name it")]
    several = any(len(run.ranks) > 1 for run in runs)
    alike: dict[str, list[str]] = {}
    for device in environment.devices:
        if device.id in used or (several and device.is_gpu and not device.is_mig):
            alike.setdefault(_device(device), []).append(device.id)
    report: Report = [
        labelled("device", f"{plain(spans(ids))} {description}")
        for description, ids in alike.items()
    ]
    report.append(
        labelled(
            "host", plain(", ".join(filter(None, (environment.host, environment.os)))) or units.NA
        )
    )
    memory = units.size_bytes(environment.memory_bytes).strip() if environment.memory_bytes else ""
    cores = f"{environment.cores} cores in use" if environment.cores else ""
    report.append(
        labelled(
            "CPU", plain(", ".join(filter(None, (environment.cpu, cores, memory)))) or units.NA
        )
    )
    report.append(labelled("python", plain(environment.python) or units.NA))
    report.append(
        labelled(
            "torch",
            plain(environment.torch)
            if environment.torch
            else f"{units.NA}: torch is not installed",
        )
    )
    gpus = any(device.is_gpu for device in environment.devices)
    for label, version in (("CUDA", environment.cuda), ("GPU driver", environment.driver)):
        report.append(
            labelled(
                label,
                plain(version)
                if version
                else f"{units.NA}: {'not reported' if gpus else 'this machine has no NVIDIA GPU'}",
            )
        )
    for run in runs:
        if run.job is not None:
            versions = [f"{name} {version}" for name, version in run.job.frameworks.items()]
            own = [f"python {run.job.python}", f"torch {run.job.torch}", *versions]
            report.append(labelled("job", plain(f"{run.job.script}: {', '.join(own)}")))
            report += [labelled("command", plain(" ".join(run.command)))] if run.command else []
            break
    return report


def _device(device: Device) -> str:
    about = properties(device)
    return plain(", ".join(filter(None, (device.name, about["memory"], about["peaks"]))))


# --- a calibration as a report --------------------------------------------------------------------

BUSY_CORES = 0.3
"""CPU cores that other processes use on an idle machine: its services and clock ticks stay below
this value."""
PEAKS = {
    "gemm_fp32_flops_per_s": "fp32_flops_per_s",
    "gemm_tf32_flops_per_s": "tf32_flops_per_s",
    "gemm_bf16_flops_per_s": "bf16_flops_per_s",
    "gemm_fp16_flops_per_s": "fp16_flops_per_s",
    "conv_fp32_flops_per_s": "fp32_flops_per_s",
    "copy_bytes_per_s": "memory_bytes_per_s",
    "triad_bytes_per_s": "memory_bytes_per_s",
    **{
        f"gemv_{precision}_bytes_per_s": "memory_bytes_per_s"
        for precision in ("fp32", "bf16", "fp16")
    },
}


def calibration_report(record: CalibrationRecord, device: Device, now_s: float) -> Report:
    """The report at Unix time `now_s` (seconds). The columns about the datasheet appear only if the
    device has one."""
    has_datasheet = bool(device.peaks.source)
    columns = [
        Column("figure"),
        Column("best", ">"),
        Column("median", ">"),
        Column("n", ">"),
        Column("spread", ">"),
    ]
    columns += [Column("datasheet", ">"), Column("share", ">")] if has_datasheet else []
    rows = [_cells(reached, device, has_datasheet) for reached in record.reached]
    return [*_head(record, device, now_s), BLANK, Table([*columns, Column("how")], rows, indent=2)]


def _head(record: CalibrationRecord, device: Device, now_s: float) -> Report:
    machine = record.machine
    driver = f", driver {machine.driver}" if machine.driver else ""
    load = f", load {record.load_1min:.2g} at the start" if record.load_1min is not None else ""
    head: Report = [
        text(f"{record.device}  {visible(device.name)}  on {visible(machine.host)}"),
        text(
            f"measured {record.created} ({age(record, now_s)})  torch {machine.torch}{driver}{load}"
        ),
    ]
    if record.others_cores >= BUSY_CORES:
        head.append(
            text(
                f"other processes used {record.others_cores:.1f} of {machine.cores} cores: these"
                " numbers may be too low"
            )
        )
    if device.peaks.source:
        head.append(text(f"datasheet: {device.peaks.source}"))
    return head


def _cells(reached: Reached, device: Device, has_datasheet: bool) -> list[Segment]:
    if reached.value is None or reached.median is None:
        empty = [""] * (5 if has_datasheet else 3)
        return [(cell, "") for cell in (reached.name, NA, *empty, visible(reached.reason))]
    cells = [
        reached.name,
        quantity(reached.value, reached.unit),
        quantity(reached.median, reached.unit),
        str(reached.n),
    ]
    cells.append(percent(reached.spread_ratio) if reached.spread_ratio is not None else "")
    if has_datasheet:
        peak = datasheet_peak(reached.name, device)
        cells += [quantity(peak, reached.unit), percent(reached.value / peak)] if peak else ["", ""]
    return [(cell, "") for cell in (*cells, reached.detail)]


def datasheet_peak(name: str, device: Device) -> float | None:
    """The datasheet's peak for a figure of the calibration; None if the datasheet has no such
    peak."""
    # bus bandwidth counts one direction, NVLink's figure counts both
    if name == "allreduce_bytes_per_s":
        both_ways = device.peaks.nvlink_bytes_per_s if device.nvlink else None
        return both_ways / 2 if both_ways else None
    return getattr(device.peaks, PEAKS[name]) if name in PEAKS else None


def age(record: CalibrationRecord, now_s: float) -> str:
    """`3 days ago`, at Unix time `now_s` (seconds)."""
    passed_s = now_s - datetime.datetime.fromisoformat(record.created).timestamp()
    for unit, length_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if passed_s >= length_s:
            count = int(passed_s // length_s)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
