"""Device details: every metric of one device with its value, unit, source and age, or the reason why it is not available."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpuconsole.model import metrics as gpu_metrics
from gpuconsole.model import units
from gpuconsole.model.machine import Device, Process
from gpuconsole.model.metrics import CATALOGUE, Metric, series_key
from gpuconsole.model.text import cell_width, plain
from gpuconsole.report.cells import Row, Segment, blank, fill, fit, line, spark, wrap
from gpuconsole.report.machine.device_tables import about, cores, links, sources, trouble
from gpuconsole.report.machine.processes import age
from gpuconsole.report.page import heading
from gpuconsole.report.parts import BLANK, Column, Line, Report, Table, labelled, lay_out, text
from gpuconsole.session.api import View

History = Callable[[str, int], list[float | None]]
"""A function that returns the recent means of a series (key) in the given number of columns; None: no sample in that time."""
OWN = ("console", "sampler")
"""Processes of gpuconsole that report metrics about themselves. They are not devices."""
OLD_S = 2.0
"""Values older than this are shown with their age."""
SECONDS_PER_COLUMN = 2.0
_GPU_GROUPS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("activity", gpu_metrics.ACTIVITY),
    ("memory", gpu_metrics.MEMORY),
    ("power and clocks", gpu_metrics.POWER),
    ("clock limits", gpu_metrics.CLOCKS),
    ("links", gpu_metrics.LINKS),
    ("health", gpu_metrics.HEALTH),
)
_HOST = tuple(metric for metric in CATALOGUE.values() if metric.name.startswith("host.") and metric.name != "host.core_busy_ratio")
_WORKLOAD = tuple(metric for metric in CATALOGUE.values() if metric.name.startswith("workload."))
_CONSOLE = tuple(metric for metric in CATALOGUE.values() if metric.name.startswith("console."))
_ALARMS = {
    "gpu.ecc_uncorrected", "gpu.row_remap_pending", "gpu.row_remap_failed", "gpu.xid_errors",
    "gpu.clocks_hw_slowdown", "gpu.clocks_hw_thermal", "gpu.clocks_power_brake",
}  # fmt: skip
"""Above zero these need action."""


class Item(NamedTuple):
    """A line: a metric of `place`, which is painted only if it is visible, or a painted row. `name` identifies the line for a selection."""

    name: str
    row: Row | None = None
    metric: Metric | None = None
    place: str = ""

    @property
    def selectable(self) -> bool:
        """Headings, blanks and reports of trouble cannot be selected."""
        return bool(self.name) and not self.name.startswith(("group ", "trouble "))


def places(view: View) -> list[str]:
    """The places that can be chosen: devices in their order (NVLinks belong to their GPU, cores to the host), then the console."""
    found = [device.id for device in view.devices]
    known = [name for name in OWN if any(series_key(metric.name, name) in view.latest for metric in _CONSOLE)]
    return found + known[:1]


def paint_places(view: View, chosen: str, width: int) -> Row:
    """The places side by side. If not all places fit, the places around the chosen place."""
    names = places(view)
    at = names.index(chosen) if chosen in names else 0
    first, last, used = at, at, cell_width(chosen) + 4
    while True:
        grown = False
        for n, wanted in ((last + 1, last + 1 < len(names)), (first - 1, first > 0)):
            if wanted and used + len(names[n]) + 2 <= width - 4:
                first, last, used, grown = min(first, n), max(last, n), used + len(names[n]) + 2, True
        if not grown:
            break
    row: list[Segment] = [("… " if first > 0 else "", "dim")]
    for n in range(first, last + 1):
        style = "mark" if n == at else "alert" if names[n] in view.lost else "accent" if names[n] == view.device else "dim"
        row += [(f" {names[n]} ", style)]
    row.append((" …" if last < len(names) - 1 else "", "dim"))
    return line(width, *(part for part in row if part[0]))


def device_items(view: View, place: str, needle: str, width: int) -> list[Item]:
    """Everything about `place`. With a `needle`, the metrics that contain it in the name or the meaning."""
    device = next((one for one in view.devices if one.id == place), None)
    items: list[Item] = []
    if not needle:
        items += [Item(f"trouble {n}", row) for n, row in enumerate(trouble(view, place, width))]
    for title, metrics, everything in _groups(device):
        shown = [one for one in metrics if _is_known(view, one, place, everything) and matches(one, needle)]
        tables = _tables(view, title, place, needle, width)
        if shown or tables:
            items += [Item("", blank(width))] if items else []
            items.append(Item(f"group {title}", heading(title, width)))
        items += [Item(one.name, None, one, place) for one in shown] + tables
    for other in OWN[1:] if place == OWN[0] else ():
        found = [one for one in _CONSOLE if series_key(one.name, other) in view.latest and matches(one, needle)]
        items += [Item("", blank(width)), Item(f"group {other}", heading(other, width))] if found else []
        items += [Item(f"{other} {one.name}", None, one, other) for one in found]
    if not needle:
        for title, rows in (("about", about(device, width) if device else []), ("sources", sources(view, width))):
            if rows:
                items += [Item("", blank(width)), Item(f"group {title}", heading(title, width))]
                items += [Item(f"{title} {n}", row) for n, row in enumerate(rows)]
    return items


def _groups(device: Device | None) -> Iterator[tuple[str, tuple[Metric, ...], bool]]:
    """Groups of metrics: title, metrics, and whether metrics without a value or a reason are listed too."""
    if device is None:
        yield "console", _CONSOLE, False
        return
    for title, metrics in _GPU_GROUPS if device.is_gpu else (("host", _HOST),):
        yield title, metrics, not device.is_mig
    yield "workload", _WORKLOAD, False


def _tables(view: View, title: str, place: str, needle: str, width: int) -> list[Item]:
    rows: list[Row] = []
    if title == "links" and any(matches(one, needle) for one in gpu_metrics.ONE_NVLINK):
        rows = lay_out(links(view, place), width)
    elif title == "host" and matches(CATALOGUE["host.core_busy_ratio"], needle):
        rows = lay_out(cores(view, width), width)
    return [Item(f"{title} table {n}", row) for n, row in enumerate(rows)]


def _is_known(view: View, metric: Metric, place: str, everything: bool) -> bool:
    key = series_key(metric.name, place)
    return everything or key in view.latest or key in view.unavailable


def matches(metric: Metric, needle: str) -> bool:
    """Whether all words of `needle` are in the name or the meaning."""
    text = f"{metric.name} {metric.meaning}".casefold()
    return all(word in text for word in needle.casefold().split())


def tally(view: View, place: str) -> str:
    """`97 values, 6 n/a`."""
    device = next((one for one in view.devices if one.id == place), None)
    keys = [
        series_key(one.name, place)
        for _, metrics, everything in _groups(device)
        for one in metrics
        if _is_known(view, one, place, everything)
    ]
    values = sum(key in view.latest and place not in view.lost for key in keys)
    return f"{values} values, {len(keys) - values} n/a"


def paint_item(view: View, item: Item, width: int, selected: bool) -> Row:
    row = item.row if item.metric is None else _metric(view, item.metric, item.place, width)
    assert row is not None
    return [("".join(text for text, _ in row), "mark")] if selected else row


def _metric(view: View, metric: Metric, place: str, width: int) -> Row:
    """Name, number, unit, age, source and meaning of a metric, as far as there is room."""
    room = min(34, max(8, width - 24))
    name: Segment = (f"  {fit(metric.name, room)} ", "")
    value, reason = _reading(view, metric, place)
    if value is None:
        return line(width, (name[0], "dim"), (f"{units.NA:>9}", "dim"), (f"  {plain(reason)}", "dim"))
    number, unit = _figure(value, metric)
    alarm = metric.name in _ALARMS and value > 0
    old = seconds_old(view, metric, place)
    late = f"{age(old):>6}" if old > OLD_S else " " * 6
    source = view.substitutes.get(series_key(metric.name, place), metric.source)
    words = f"  {source}" if width < 100 else f"  {fit(source, 12)}  {metric.meaning}"
    return line(width, name, (f"{number:>9} {unit:<10}", "alert" if alarm else "accent"), (f" {late}", ""), (words, "dim"))


def _reading(view: View, metric: Metric, place: str) -> tuple[float | None, str]:
    """The value, or the reason why there is no value."""
    key = series_key(metric.name, place)
    if place in view.lost:
        return None, f"device lost: {view.lost[place]}"
    return view.latest.get(key), view.unavailable.get(key, "no sample yet")


def _figure(value: float, metric: Metric) -> tuple[str, str]:
    """Number and unit, for two columns."""
    text = units.quantity(value, metric.unit)
    if metric.unit in ("", "0/1") or text == units.NA:
        return text, ""
    if text.endswith(f" {metric.unit}"):  # as declared: the unit may be two words
        return text.removesuffix(f" {metric.unit}"), metric.unit
    number, _, unit = text.rpartition(" ")  # with a prefix: GB/s
    return number, unit


def seconds_old(view: View, metric: Metric, place: str) -> float:
    return view.now - view.sampled.get(series_key(metric.name, place), view.now)


def devices_report(view: View) -> Report:
    """Every device with its metrics, links and processes: for the terminal."""
    found: Report = [text(f"driver {plain(view.environment.driver)}"), BLANK] if view.environment.driver else []
    if view.no_gpu_reason:
        found += [text(f"no GPU: {plain(view.no_gpu_reason)}"), BLANK]
    for device in view.devices:
        found += [*_device_report(view, device), BLANK]
    return found[:-1]


def _device_report(view: View, device: Device) -> Report:
    memory = units.quantity(device.memory_bytes, "bytes") if device.memory_bytes else ""
    facts = (memory, plain(device.pcie), f"NVLink {plain(device.nvlink)}" if device.nvlink else "", plain(device.uuid))
    found: Report = [Line([("  ".join(filter(None, (device.id, plain(device.name), *facts))), "heading")])]
    if device.id in view.lost:
        return [*found, text(f"lost: {plain(view.lost[device.id])}", "alert", indent=2)]
    known = [metric for _, metrics, _ in _groups(device) for metric in metrics if _is_known(view, metric, device.id, False)]
    found.append(Table((Column("metric"), Column("value", ">"), Column("source")), [_cells(view, one, device.id) for one in known], 2))
    if not device.is_gpu:
        return [*found, *cores(view, 100)]
    paths = [f"{link.b if link.a == device.id else link.a} {link.path}" for link in view.links if device.id in (link.a, link.b)]
    found += [*links(view, device.id), *([labelled("paths", ", ".join(paths), indent=2)] if paths else [])]
    holders = [one for one in view.processes if one.device == device.id]
    columns = (Column("process"), Column("memory", ">"), Column("kind"), Column("user and name"))
    return [*found, Table(columns, [_process_cells(one) for one in holders], 2)] if holders else found


def _cells(view: View, metric: Metric, place: str) -> list[Segment]:
    value, reason = _reading(view, metric, place)
    if value is None:
        return [(metric.name, ""), (units.NA, "dim"), (plain(reason), "dim")]
    source = view.substitutes.get(series_key(metric.name, place), metric.source)
    return [(metric.name, ""), (units.quantity(value, metric.unit), "accent"), (source, "dim")]


def _process_cells(process: Process) -> list[Segment]:
    who = plain(" ".join(filter(None, (process.user, process.name)))) or "not visible for this user"
    memory = units.quantity(process.memory_bytes, "bytes")
    return [(f"process {process.pid}", ""), (memory, ""), (process.kind, ""), (who, "")]


def paint_metric(view: View, item: Item | None, history: History, width: int, height: int) -> list[Row]:
    """The selected metric in words, and its recent values."""
    rule = line(width, ("─" * width, "dim"))
    if item is None or item.metric is None or height < 2:
        return fill([rule], width, height)
    metric, key = item.metric, series_key(item.metric.name, item.place)
    value, reason = _reading(view, metric, item.place)
    source = view.substitutes.get(key, metric.source)
    if value is None:
        needs = f" Needs {metric.needs} or newer." if metric.needs != "any" else ""
        words = f"n/a: {plain(reason)}.{needs}"
    else:
        old = seconds_old(view, metric, item.place)
        words = f"From {source}, {f'{age(old)} ago' if old > OLD_S else 'just now'}."
    words = f"{metric.name}: {metric.meaning}. {words}"
    past = value is not None and height >= 4
    rows = [rule, *(line(width, text) for text in wrap(words, width, height - 1 - past))]
    if past:
        label = f"last {units.clock(width * SECONDS_PER_COLUMN)}  "
        trace = spark(history(key, width - len(label)), 1, 1.0 if metric.unit in ("ratio", "0/1") else None)[0]
        rows = [*fill(rows, width, height - 1), line(width, (label, "dim"), (trace, "trace"))]
    return fill(rows, width, height)
