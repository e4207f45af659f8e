"""The texts of the columns of a device (`model/device_columns.py`): in a line, in a cell of a
table; and the line of a device in the header."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from gpuconsole.model import device_columns, units
from gpuconsole.model.device_columns import DeviceColumn
from gpuconsole.model.machine import Device, Peaks
from gpuconsole.model.metrics import CATALOGUE, series_key
from gpuconsole.model.text import cell_width, clean
from gpuconsole.report.cells import Row, line_of
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import GpuState, gpu_states

GPU_LINE = (
    device_columns.SM,
    device_columns.TENSOR,
    device_columns.HBM,
    device_columns.HBM_BANDWIDTH,
    device_columns.POWER,
    device_columns.TEMPERATURE,
    device_columns.POWER_CAP,
    device_columns.SM_CLOCK,
)
VITAL_IN_LINE = (
    device_columns.SM,
    device_columns.HBM,
    device_columns.POWER,
    device_columns.TEMPERATURE,
)
"""Columns of a line that stay where no GPU has a value."""
UNIFIED_COLUMNS = {
    device_columns.HBM: device_columns.UNIFIED_MEMORY,
    device_columns.HBM_BANDWIDTH: device_columns.UNIFIED_BANDWIDTH,
}
"""Columns of a GPU that has the memory of the host, which is no HBM."""
MIN_GROUPED = 1000
"""From here on, digits stand in groups of three."""
HOST_LINE = (device_columns.CORES, device_columns.HOST_MEMORY, device_columns.RUN_QUEUE_DELAY)
SM_OR_UTILIZATION = device_columns.SM._replace(
    title="SM or util", short="SM/util", lead="SM or util"
)
"""How busy GPUs are of which only some report active SMs: the measure that each GPU has."""
GAP = "   "
"""Between two figures of a line."""
History = Callable[[str, int], list[float | None]]
"""A function that returns the recent means of a series (key) in the given number of columns; None:
no sample in that time."""


class ColumnReading(NamedTuple):
    """The newest values of a column for one device. None: there is no value; no `top`: the scale
    ends at the largest value. `ways`: whether `beside` is the other direction of traffic."""

    value: float | None
    beside: float | None
    top: float | None
    ways: bool = False

    @property
    def total(self) -> float | None:
        """The value; of traffic the sum of both directions, None where one of them is not known."""
        if not self.ways or self.value is None:
            return self.value
        return None if self.beside is None else self.value + self.beside


def read(view: View, column: DeviceColumn, device: str) -> ColumnReading:
    column = of_device(view, column, device)
    latest = view.latest.get
    value = latest(series_key(column.metric, device))
    beside = latest(series_key(column.beside, device)) if column.beside else None
    top = latest(series_key(column.top, device)) if column.top else None
    full = view.environment.cores if column is device_columns.CORES else column.full
    is_known = top is not None
    return ColumnReading(value, beside, top if is_known else full or None, bool(column.ways))


def link_column(view: View, gpus: Iterable[str]) -> DeviceColumn:
    """The link whose activity matters: NVLink where a GPU reports its traffic, otherwise PCIe."""
    known = any(series_key(device_columns.NVLINK.metric, gpu) in view.latest for gpu in gpus)
    return device_columns.NVLINK if known else device_columns.PCIE


def for_devices(view: View, column: DeviceColumn, devices: Collection[str]) -> DeviceColumn:
    """The column with the words of these devices: their memory may be that of the host, and their
    driver may know no active SMs."""
    if column is device_columns.SM:
        return (
            SM_OR_UTILIZATION if has_two_measures(view, devices) else activity_column(view, devices)
        )
    unified = {device.id for device in view.devices if device.is_unified}
    return (
        UNIFIED_COLUMNS.get(column, column) if devices and unified.issuperset(devices) else column
    )


def activity_column(view: View, devices: Collection[str]) -> DeviceColumn:
    """How busy these devices are: the share of active SMs; where no device reports it, the
    utilization of nvidia-smi."""
    for column in (device_columns.SM, device_columns.UTILIZATION):
        if any(series_key(column.metric, device) in view.latest for device in devices):
            return column
    return device_columns.SM


def has_two_measures(view: View, devices: Collection[str]) -> bool:
    """Whether some of the devices report active SMs, and others only the utilization of nvidia-smi.
    A GPU whose driver is slow is asked for few values, and does not count."""
    known = {
        column: {
            device
            for device in devices
            if device not in view.slow and series_key(column.metric, device) in view.latest
        }
        for column in (device_columns.SM, device_columns.UTILIZATION)
    }
    active = known[device_columns.SM]
    return bool(active) and bool(known[device_columns.UTILIZATION] - active)


def of_device(view: View, column: DeviceColumn, device: str) -> DeviceColumn:
    """The column that is read for one device of several: its own measure of how busy it is."""
    return activity_column(view, (device,)) if column is SM_OR_UTILIZATION else column


def state_of(view: View, gpu: str) -> GpuState:
    """The state of one GPU or MIG slice."""
    return gpu_states(
        view,
        [device for device in view.devices if device.id == gpu or device.id.startswith(f"{gpu}/")],
    )[gpu]


def trouble(view: View, gpu: str) -> str:
    """Why the values of a GPU do not describe its present state, in place of its figures; empty if
    they do."""
    if not any(device.id == gpu for device in view.devices):
        return ""
    state = state_of(view, gpu)
    return state.text if state.kind in ("lost", "silent") else ""


def figure(column: DeviceColumn, reading: ColumnReading, alone: bool = False) -> str:
    """The value with its unit and what it is compared with, or `alone`. Where figures change, they
    keep their width: ` 78 %`, `612/700 W`."""
    value, beside, top, _ = reading
    match CATALOGUE[column.metric].unit:
        case "bytes":
            text = units.used_of(value, top)
        case "bytes/s" if column.ways:
            first, second, unit = units.rates(value, beside, "B/s")
            text = f"{column.ways[0]} {first.strip()} {column.ways[1]} {second.strip()} {unit}"
        case "ratio":
            text = (
                f"{units.si(beside, 'B/s')} {units.percent(value)}"
                if column.beside and not alone
                else units.percent(value)
            )
        case "cores":
            text = units.cores(value) + (f" of {top:.0f}" if top else " cores")
        case "W":
            text = units.watts(value, None if alone else top)
        case "°C":
            text = units.degrees(value, "°" if alone else " °C")
        case unit:
            text = units.quantity(value, unit)
    return text if alone else column.pattern.format(text)


def cell(view: View, column: DeviceColumn, device: str) -> str:
    """The text in a table: the value, with the limit that the driver reports (`551/700 W`,
    `72/87°`), of a link the sum of both directions. The utilization of nvidia-smi has its name
    where other devices have another measure."""
    own = of_device(view, column, device)
    if own is not column and own is device_columns.UTILIZATION:
        return f"util {cell(view, own, device).strip()}"
    reading = read(view, own, device)
    if own.ways:
        return units.si(reading.total, "B/s")
    if own is device_columns.PERFORMANCE_STATE:
        return units.NA if reading.value is None else f"P{reading.value:.0f}"
    match CATALOGUE[own.metric].unit:
        case "W":
            return units.watts(reading.value, reading.top)
        case "°C":
            top = view.latest.get(series_key(own.top, device))
            return units.degrees(reading.value, f"/{top:.0f}°" if top else "°")
        case _:
            return figure(own, reading, alone=True)


def scale_top(metric: str, top: float) -> str:
    """The top of the scale of a history: what the metric can reach at most, or its largest
    value."""
    match CATALOGUE[metric].unit:
        case "ratio":
            text = units.percent(top)
        case "bytes":
            text = units.size_bytes(top)
        case "bytes/s" | "FLOP/s" as unit:
            text = units.si(top, unit.replace("bytes", "B"))
        case "s":
            text = units.latency(top)
        case "W":
            text = units.watts(top)
        case "°C":
            text = units.degrees(top)
        case _:
            text = units.digits(top) if top < MIN_GROUPED else units.grouped(top)
    return text.strip()


def keeps_width(column: DeviceColumn) -> bool:
    """Whether all texts of `cell` are equally wide: shares, and rates of links."""
    return bool(column.ways) or CATALOGUE[column.metric].unit == "ratio"


def label(column: DeviceColumn, width: int) -> str:
    """The title of the column where it leaves a blank in `width` cells, otherwise the short
    title."""
    return (column.title if len(column.title) < width else column.short_title).ljust(width)[:width]


def columns_that_fit(columns: Iterable[DeviceColumn], width: int) -> list[DeviceColumn]:
    """The columns for a line or a table of `width` cells."""
    return [column for column in columns if width >= column.from_width]


def measured(view: View, columns: Iterable[DeviceColumn], device: str) -> Iterator[str]:
    """The figures of those columns that have a value."""
    for column in columns:
        reading = read(view, column, device)
        if reading.value is not None and (reading.value > 0 or not column.if_positive):
            yield figure(column, reading)


def named(view: View, columns: Iterable[DeviceColumn], device: str) -> Iterator[str]:
    """The figures after the names of their columns; a missing value reads n/a."""
    return (text for column in columns if (text := _named(view, column, device)))


def _named(view: View, column: DeviceColumn, device: str) -> str:
    reading = read(view, column, device)
    if column.if_positive and not reading.value:
        return ""
    name = column.lead if reading.value is not None else column.lead or column.short_title
    return f"{name} {figure(column, reading)}".lstrip()


def fitting(figures: Iterable[str], room: int) -> list[str]:
    """The figures that fit whole into `room` cells, with a gap before each: a cut number is a wrong
    number."""
    kept = []
    for text in figures:
        if (width := len(GAP) + cell_width(clean(text))) <= room:
            kept.append(text)
            room -= width
    return kept


def device_line(view: View, device: Device, width: int) -> Row:
    """The name of a device, then the figures that fit, or the reason why there are none."""
    if device.is_gpu:
        return gpu_lines(view, [device], width)[0]
    why = view.no_gpu_reason
    name = (
        f"CPU ({why})"
        if why
        else "CPU"
        if any(other.is_gpu for other in view.devices)
        else "CPU (no NVIDIA GPU)"
    )
    figures = [facts.short_name(device.name), *named(view, HOST_LINE, facts.HOST)]
    room = width - cell_width(clean(name))
    return line_of([(name, "accent"), *((GAP + text, "") for text in fitting(figures, room))])


def gpu_lines(view: View, gpus: Sequence[Device], width: int) -> list[Row]:
    """Each GPU in a line: its name, then the figures that fit, one below the other; or the reason
    why it has none. A column of which no GPU has a value is left out, if it is no vital one."""
    names = {gpu.id: clean(f"{gpu.id} {facts.short_name(gpu.name)}") for gpu in gpus}
    longest = max(map(cell_width, names.values()), default=0)
    ids = [gpu.id for gpu in gpus if not trouble(view, gpu.id)]
    columns: list[dict[str, str]] = []
    room = width - longest
    for wanted in columns_that_fit(GPU_LINE, width):
        column = for_devices(view, wanted, ids)
        texts = {gpu: _named(view, of_device(view, column, gpu), gpu) for gpu in ids}
        each = max(map(cell_width, texts.values()), default=0)
        known = wanted in VITAL_IN_LINE or any(
            series_key(of_device(view, column, gpu).metric, gpu) in view.latest for gpu in ids
        )
        if known and each and len(GAP) + each <= room:
            columns.append(
                {gpu: text + " " * (each - cell_width(text)) for gpu, text in texts.items()}
            )
            room -= len(GAP) + each
    rows = []
    for gpu in gpus:
        name = names[gpu.id]
        row: Row = [(name, "accent" if gpu.id == view.device else "")]
        gap = " " * (longest - cell_width(name)) + GAP
        if why := trouble(view, gpu.id):
            rows.append(line_of([*row, (gap + why, "alert")]))
            continue
        for texts in columns:
            row.append((gap + texts[gpu.id], ""))
            gap = GAP
        rows.append(line_of(row))
    return rows


# --- fixed properties -----------------------------------------------------------------------------


def properties(device: Device) -> dict[str, str]:
    """The fixed properties by title; empty: the driver does not report the property."""
    return {
        "memory": units.size_bytes(device.memory_bytes).strip()
        + (", unified with the host" * device.is_unified)
        if device.memory_bytes
        else "",
        "uuid": device.uuid,
        "PCIe": device.pcie,
        "NVLink": device.nvlink,
        "peaks": peaks(device.peaks),
    }


def peaks(peaks: Peaks) -> str:
    """The known dense peaks with their source."""
    rates: Sequence[tuple[str, float | None, str]] = [
        *(
            (name, getattr(peaks, f"{name}_flops_per_s"), "FLOP/s")
            for name in ("fp32", "tf32", "bf16", "fp16")
        ),
        ("memory", peaks.memory_bytes_per_s, "B/s"),
    ]
    texts = [
        f"{name} {units.si(rate, unit).strip()}" for name, rate, unit in rates if rate is not None
    ]
    return ", ".join(texts) + (f" ({peaks.source})" if texts and peaks.source else "")
