"""A roofline: the arithmetic rate of each class of kernels next to the attainable rate of the device at that intensity."""

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
NO_PEAK = "no roofline: the peak of the device is not known; gpuconsole calibrate measures it"
NO_POINTS = "no roofline: no kernel class with known shapes took 0.5 % of the time"
AXES = (
    "horizontal FLOP/byte, vertical FLOP/s; share of time · share of the roof at that intensity (above 100 %: the data came from a cache)"
)
NO_BANDWIDTH = "no memory roof: bandwidth not known (gpuconsole calibrate)"


class Roof(msgspec.Struct, frozen=True):
    """The peak rates of the device. Without `bytes_per_s` the roof has only its flat part."""

    flops_per_s: float
    flops_source: str
    bytes_per_s: float | None
    bytes_source: str

    @property
    def ridge(self) -> float | None:
        """The ridge intensity in FLOP/byte. Below, memory is the limit; above, arithmetic is the limit."""
        return roofline.ridge(self.flops_per_s, self.bytes_per_s) if self.bytes_per_s else None

    def at(self, intensity: float) -> float:
        """The attainable FLOP/s of a kernel with this intensity (FLOP/byte)."""
        return roofline.attainable(intensity, self.flops_per_s, self.bytes_per_s) if self.bytes_per_s else self.flops_per_s


def roof_of(run: Run, devices: Sequence[Device], environment: Environment) -> Roof | None:
    """The datasheet peaks of a GPU; without them, the peaks that the run or a calibration measured."""
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
    """The chart with its legend in at most `height` rows, or the reason why there is no chart."""
    points = [one for one in classes if one.name in LETTERS and one.share_ratio >= SMALLEST and one.intensity and one.flops_per_s]
    if roof is None or not points:
        return paragraph(NO_PEAK if roof is None else NO_POINTS, width, "dim")
    head = paragraph(_title(roof), width, "title") + paragraph(_sources(roof), width, "dim")
    legend = _legend(points, roof, width)
    return [*head, *_chart(points, roof, width, max(8, height - len(head) - len(legend))), *legend]


def _title(roof: Roof) -> str:
    memory = f", {units.si(roof.bytes_per_s, 'B/s').strip()}" if roof.bytes_per_s else ""
    ridge = f", ridge at {units.plain(roof.ridge)} FLOP/byte" if roof.ridge else ""
    return f"roofline: {units.si(roof.flops_per_s, 'FLOP/s').strip()}{memory}{ridge}"


def _sources(roof: Roof) -> str:
    return f"{roof.flops_source}; " + (f"memory: {roof.bytes_source}" if roof.bytes_per_s else NO_BANDWIDTH)


def _chart(points: Sequence[OpClass], roof: Roof, width: int, height: int) -> list[Row]:
    """Both axes are logarithmic: plotext gets the logarithms, and ticks at the powers of ten."""
    places = [(math.log10(one.intensity or 1.0), math.log10(one.flops_per_s or 1.0), LETTERS[one.name]) for one in points]
    top = math.log10(roof.flops_per_s)
    ridge = math.log10(roof.ridge) if roof.ridge else None
    left = math.floor(min([x for x, _, _ in places] + ([ridge - 1] if ridge is not None else [])))
    right = max([x for x, _, _ in places] + ([ridge + 0.5] if ridge is not None else [])) + 0.3
    low, high = math.floor(min(y for _, y, _ in places)), max(top, *(y for _, y, _ in places)) + 0.3
    figure = empty_figure(width, height)
    if ridge is not None:
        start = max(left, ridge - (top - low))  # the slope enters the chart here
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
    """At most `most` ticks, at powers of ten."""
    last = math.floor(high)
    powers = range(low, last + 1, -(-(last - low + 1) // most))
    figure.ruler(axis).ticks(list(powers), [text(10.0**power) for power in powers])


def _legend(points: Sequence[OpClass], roof: Roof, width: int) -> list[Row]:
    """Each letter with its class, its share of device time, and its share of the roof."""
    rows: list[list[Segment]] = [[]]
    for one in points:
        reached = (one.flops_per_s or 0.0) / roof.at(one.intensity or 0.0)
        entry: list[Segment] = [
            (LETTERS[one.name], "accent"),
            (f" {one.name}", ""),
            (f" {units.percent(one.share_ratio).strip()}", "title"),
            (f" · {units.percent(reached).strip()}", ""),
        ]
        gap: list[Segment] = [("   ", "")] if rows[-1] else []
        if rows[-1] and row_width(rows[-1] + gap + entry) > width:
            rows.append(entry)
        else:
            rows[-1] += gap + entry
    return [line(width, *row) for row in rows] + paragraph(AXES, width, "dim")
