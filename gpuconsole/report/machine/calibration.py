"""A calibration as a report: every figure with its repeats, and its share of the datasheet."""

from __future__ import annotations

import datetime

from gpuconsole.model.machine.calibration import CalibrationRecord, Reached
from gpuconsole.model.machine.device import Device
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import BLANK, Column, Report, Table, text
from gpuconsole.report.units import NA, percent, quantity

BUSY_CORES = 0.3
"""CPU cores that other processes use on an idle machine: its services and clock ticks stay below this value."""
PEAKS = {
    "gemm_fp32_flops_per_s": "fp32_flops_per_s",
    "gemm_tf32_flops_per_s": "tf32_flops_per_s",
    "gemm_bf16_flops_per_s": "bf16_flops_per_s",
    "gemm_fp16_flops_per_s": "fp16_flops_per_s",
    "conv_fp32_flops_per_s": "fp32_flops_per_s",
    "copy_bytes_per_s": "memory_bytes_per_s",
    "triad_bytes_per_s": "memory_bytes_per_s",
    **{f"gemv_{precision}_bytes_per_s": "memory_bytes_per_s" for precision in ("fp32", "bf16", "fp16")},
}


def calibration_report(record: CalibrationRecord, device: Device, now_s: float) -> Report:
    """The report at Unix time `now_s` (seconds). The columns about the datasheet appear only if the device has one."""
    has_datasheet = bool(device.peaks.source)
    columns = [Column("figure"), Column("best", ">"), Column("median", ">"), Column("n", ">"), Column("spread", ">")]
    columns += [Column("datasheet", ">"), Column("share", ">")] if has_datasheet else []
    rows = [_cells(one, device, has_datasheet) for one in record.reached]
    return [*_head(record, device, now_s), BLANK, Table([*columns, Column("how")], rows, indent=2)]


def _head(record: CalibrationRecord, device: Device, now_s: float) -> Report:
    machine = record.machine
    driver = f", driver {machine.driver}" if machine.driver else ""
    load = f", load {record.load_1min:.2g} at the start" if record.load_1min is not None else ""
    head: Report = [
        text(f"{record.device}  {visible(device.name)}  on {visible(machine.host)}"),
        text(f"measured {record.created} ({age(record, now_s)})  torch {machine.torch}{driver}{load}"),
    ]
    if record.others_cores >= BUSY_CORES:
        head.append(text(f"other processes used {record.others_cores:.1f} of {machine.cores} cores: these figures may be too low"))
    if device.peaks.source:
        head.append(text(f"datasheet: {device.peaks.source}"))
    return head


def _cells(one: Reached, device: Device, has_datasheet: bool) -> list[Segment]:
    if one.value is None or one.median is None:
        empty = [""] * (5 if has_datasheet else 3)
        return [(words, "") for words in (one.name, NA, *empty, visible(one.reason))]
    cells = [one.name, quantity(one.value, one.unit), quantity(one.median, one.unit), str(one.n)]
    cells.append(percent(one.spread_ratio) if one.spread_ratio is not None else "")
    if has_datasheet:
        peak = datasheet_peak(one.name, device)
        cells += [quantity(peak, one.unit), percent(one.value / peak)] if peak else ["", ""]
    return [(words, "") for words in (*cells, one.detail)]


def datasheet_peak(name: str, device: Device) -> float | None:
    """The datasheet's peak for a figure of the calibration; None if the datasheet has no such peak."""
    if name == "allreduce_bytes_per_s":  # bus bandwidth counts one direction, NVLink's figure counts both
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
