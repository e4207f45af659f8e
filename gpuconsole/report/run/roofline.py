"""A roofline: what each class of kernels reaches, against what the device can do at its intensity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuconsole.diagnosis.models import roofline
from gpuconsole.model.machine.device import Device
from gpuconsole.model.profile import OpClass, OpClassName
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment
from gpuconsole.report import units
from gpuconsole.report.cells import Row, Segment, line, row_width
from gpuconsole.report.charts import chart_rows, empty_figure
from gpuconsole.report.page import paragraph

LETTERS: dict[OpClassName, str] = {
    "gemm": "G", "attention": "A", "convolution": "C", "elementwise": "E", "normalization": "N", "reduction": "R", "embedding": "M",
    "optimizer": "O", "communication": "X", "fused": "F",
}  # fmt: skip
SMALLEST = 0.005
NO_PEAK = "no roofline: the device's peak is not known, neither from a datasheet nor measured (gpuconsole calibrate)"
NO_POINTS = "no roofline: no kernel class with known shapes took a share worth showing"
AXES = "across FLOP/byte, up FLOP/s; share of time · share of the roof at that place (above 100%: served from cache)"
NO_BANDWIDTH = "no memory roof: bandwidth not known (gpuconsole calibrate)"


class Roof(msgspec.Struct, frozen=True):
    """What the device can do. `bytes_per_s` None: then there is the flat part only."""

    flops_per_s: float
    flops_source: str
    bytes_per_s: float | None
    bytes_source: str

    @property
    def ridge(self) -> float | None:
        """The FLOP/byte from which on arithmetic is the limit, and no longer memory."""
        return roofline.ridge(self.flops_per_s, self.bytes_per_s) if self.bytes_per_s else None

    def at(self, intensity: float) -> float:
        """The most FLOP/s that a kernel of this intensity can reach."""
        return roofline.attainable(intensity, self.flops_per_s, self.bytes_per_s) if self.bytes_per_s else self.flops_per_s


def roof_of(run: Run, devices: Sequence[Device], environment: Environment) -> Roof | None:
    """Datasheet peaks of a GPU; else what was measured: by the run itself, or by a calibration."""
    precision = str(run.knobs.get("precision", "fp32"))
    device = next((device for device in devices if device.id == run.device), None)
    summary, calibration = run.summary, environment.calibration
    peak: float | None = None
    bandwidth: float | None = None
    source = memory_source = ""
    if device is not None and device.is_gpu:
        peak, source = getattr(device.peaks, f"{precision}_flops_per_s", None), f"{precision} dense, {device.peaks.source}"
        bandwidth, memory_source = device.peaks.memory_bytes_per_s, device.peaks.source
    if peak is None and summary.flops_per_s and summary.mfu_ratio:
        peak, source = summary.flops_per_s / summary.mfu_ratio, summary.mfu_peak_source
    if peak is None:
        peak, source = calibration.get(f"gemm_{precision}_flops_per_s"), f"{precision} matrix product, calibrated"
    if bandwidth is None:
        bandwidth, memory_source = calibration.get("copy_bytes_per_s"), "copy, calibrated"
    return Roof(peak, source, bandwidth, memory_source) if peak else None


def paint_roofline(classes: Sequence[OpClass], roof: Roof | None, width: int, height: int) -> list[Row]:
    """The chart with its legend, in at most `height` rows; or a line that says why there is none."""
    points = [one for one in classes if one.name in LETTERS and one.share_ratio >= SMALLEST and one.intensity and one.flops_per_s]
    if roof is None or not points:
        return paragraph(NO_PEAK if roof is None else NO_POINTS, width, "dim")
    head = paragraph(_title(roof), width, "title") + paragraph(_sources(roof), width, "dim")
    legend = _legend(points, roof, width)
    return [*head, *_chart(points, roof, width, max(8, height - len(head) - len(legend))), *legend]


def _title(roof: Roof) -> str:
    memory = f", {units.si(roof.bytes_per_s, 'B/s').strip()}" if roof.bytes_per_s else ""
    ridge = f", ridge at {roof.ridge:.3g} FLOP/byte" if roof.ridge else ""
    return f"roofline: {units.si(roof.flops_per_s, 'FLOP/s').strip()}{memory}{ridge}"


def _sources(roof: Roof) -> str:
    return f"{roof.flops_source}; " + (f"memory: {roof.bytes_source}" if roof.bytes_per_s else NO_BANDWIDTH)


def _chart(points: Sequence[OpClass], roof: Roof, width: int, height: int) -> list[Row]:
    """Both axes are logarithms: plotext draws them as plain numbers with ticks at the powers of ten."""
    places = [(math.log10(one.intensity or 1.0), math.log10(one.flops_per_s or 1.0), LETTERS[one.name]) for one in points]
    top = math.log10(roof.flops_per_s)
    ridge = math.log10(roof.ridge) if roof.ridge else None
    left = math.floor(min([x for x, _, _ in places] + ([ridge - 1] if ridge is not None else [])))
    right = max([x for x, _, _ in places] + ([ridge + 0.5] if ridge is not None else [])) + 0.3
    low, high = math.floor(min(y for _, y, _ in places)), max(top, *(y for _, y, _ in places)) + 0.3
    figure = empty_figure(width, height)
    if ridge is not None:
        start = max(left, ridge - (top - low))  # where the slope enters the chart
        figure.draw(figure.signal([start, ridge], [top - (ridge - start), top]).lines())
    figure.draw(figure.signal([ridge if ridge is not None else left, right], [top, top]).lines())
    for x, y, letter in places:
        figure.draw(figure.text(x, y, letter, alignment="center"))
    figure.ruler("x").lim(left, right)
    figure.ruler("y").lim(low, high)
    _decades(figure, "x", left, right, max(3, width // 12), lambda value: f"{value:g}")
    _decades(figure, "y", low, high, max(2, height // 2), lambda value: units.si(value, "").strip())
    return chart_rows(figure, width, "".join(LETTERS.values()))


def _decades(figure: Any, axis: str, low: int, high: float, most: int, text: Callable[[float], str]) -> None:
    """Ticks at powers of ten, at most `most` of them."""
    last = math.floor(high)
    powers = range(low, last + 1, -(-(last - low + 1) // most))
    figure.ruler(axis).ticks(list(powers), [text(10.0**power) for power in powers])


def _legend(points: Sequence[OpClass], roof: Roof, width: int) -> list[Row]:
    """Every letter with its class, its share of device time, and how much of its roof it reaches."""
    rows: list[list[Segment]] = [[]]
    for one in points:
        reached = (one.flops_per_s or 0.0) / roof.at(one.intensity or 0.0)
        entry: list[Segment] = [
            (LETTERS[one.name], "accent"),
            (f" {one.name}", ""),
            (f" {one.share_ratio:.0%}", "title"),
            (f"·{reached:.0%}", ""),
        ]
        gap: list[Segment] = [("   ", "")] if rows[-1] else []
        if rows[-1] and row_width(rows[-1] + gap + entry) > width:
            rows.append(entry)
        else:
            rows[-1] += gap + entry
    return [line(width, *row) for row in rows] + paragraph(AXES, width, "dim")
