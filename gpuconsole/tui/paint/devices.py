"""Device details: every metric with its value, unit and source, or why it is not available."""

from __future__ import annotations

from gpuconsole.model.device import Device, Peaks
from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.runtime.front import View
from gpuconsole.tui.paint import format
from gpuconsole.tui.paint.cells import Row, blank, fit, line
from gpuconsole.tui.paint.page import heading, labelled

ORDER = {name: n for n, name in enumerate(CATALOGUE)}


def paint_devices(view: View, width: int) -> list[Row]:
    """Devices first, then whatever else reports something (the console itself)."""
    table = by_device(view)
    known = [device.id for device in view.devices]
    rows: list[Row] = []
    for device in view.devices:
        rows += _facts(view, device, width) + _metrics(table.get(device.id, {}), width) + [blank(width)]
    for name in sorted(set(table) - set(known), key=_natural):
        rows += [heading(name, width), *_metrics(table[name], width), blank(width)]
    return rows


def by_device(view: View) -> dict[str, dict[str, tuple[float | None, str]]]:
    """Metric to value, or to the reason why there is none, for every device."""
    table: dict[str, dict[str, tuple[float | None, str]]] = {}
    for key, why in view.unavailable.items():
        metric, device = split_key(key)
        table.setdefault(device, {})[metric] = (None, why)
    for key, value in view.latest.items():
        metric, device = split_key(key)
        table.setdefault(device, {})[metric] = (value, "")
    return table


def split_key(key: str) -> tuple[str, str]:
    """`gpu.power_w{device=gpu:0}` apart."""
    metric, _, rest = key.partition("{device=")
    return metric, rest.removesuffix("}")


def _natural(name: str) -> tuple[str, int]:
    """`cpu:10` after `cpu:9`."""
    head, _, tail = name.partition(":")
    return head, int(tail) if tail.isdigit() else -1


def _facts(view: View, device: Device, width: int) -> list[Row]:
    rows = [heading(f"{device.id}   {device.name}", width)]
    if device.id in view.lost:
        rows.append(line(width, (f"  lost: {view.lost[device.id]}", "alert")))
    if not device.is_gpu and view.no_gpu_reason:
        rows += labelled("  no GPU", view.no_gpu_reason, width, 16)
    facts = [("uuid", device.uuid), ("PCIe", device.pcie), ("NVLink", device.nvlink), ("peaks", _peaks(device.peaks))]
    if device.memory_bytes:
        facts.insert(0, ("memory", format.size_bytes(device.memory_bytes).strip()))
    for label, text in facts:
        if text:
            rows += labelled(f"  {label}", text, width, 16)
    return rows


def _peaks(peaks: Peaks) -> str:
    """The dense peaks that are known, with where they come from."""
    named = [
        (name, getattr(peaks, f"{name}_flops_per_s"), "FLOP/s") for name in ("fp32", "tf32", "bf16", "fp16")
    ] + [("memory", peaks.memory_bytes_per_s, "B/s")]  # fmt: skip
    known = [f"{name} {format.si(value, unit).strip()}" for name, value, unit in named if value is not None]
    return ", ".join(known) + (f" ({peaks.source})" if known and peaks.source else "")


def _metrics(metrics: dict[str, tuple[float | None, str]], width: int) -> list[Row]:
    rows: list[Row] = []
    for name in sorted(metrics, key=lambda one: ORDER.get(one, len(ORDER))):
        value, why = metrics[name]
        metric = CATALOGUE.get(name)
        source = metric.source if metric else ""
        if value is None:
            rows.append(line(width, (f"  {fit(name, 32)} ", "dim"), (fit(format.NA, 16, ">"), "dim"), (f"  {why}", "dim")))
            continue
        figure = format.quantity(value, metric.unit if metric else "")
        meaning = metric.meaning if metric else ""
        rows.append(line(width, (f"  {fit(name, 32)} ", ""), (fit(figure, 16, ">"), "accent"), (f"  {fit(source, 18)}  {meaning}", "dim")))
    return rows
