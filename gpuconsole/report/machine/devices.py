"""Device details: every metric of one device with its value, unit, source and age, or the reason
why it is not available; and all devices in text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuconsole.model import metrics as gpu_metrics
from gpuconsole.model import units
from gpuconsole.model.device_columns import ALARMS, FACTS, NVLINK_COLUMNS
from gpuconsole.model.machine import Device, Process
from gpuconsole.model.metrics import CATALOGUE, Metric, series_key
from gpuconsole.model.text import cell_width, cut, plain
from gpuconsole.report.cells import Row, Segment, blank, fill, fit, line, shaded, spans, spark, wrap
from gpuconsole.report.machine.columns import (
    GAP,
    HOST_LINE,
    cell,
    named,
    properties,
    state_of,
)
from gpuconsole.report.machine.columns import History as History
from gpuconsole.report.machine.gpus import (
    MAX_NAME,
    SHORT,
    STYLES,
    fault_words,
    needed_columns,
    same_name,
)
from gpuconsole.report.page import heading, labelled, paragraph
from gpuconsole.report.parts import BLANK, Column, Line, Report, Table, lay_out, text
from gpuconsole.report.parts import labelled as labelled_line
from gpuconsole.report.screen.chart import SPARK_COLUMN_S
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import GpuState, faults, gpu_states, unreadable

# --- the values of a place ------------------------------------------------------------------------

OWN = ("console", "sampler")
"""Processes of gpuconsole that report metrics about themselves. They are not devices."""
OLD_S = 2.0
"""Values older than this are shown with their age."""
_GPU_GROUPS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("activity", gpu_metrics.ACTIVITY),
    ("memory", gpu_metrics.MEMORY),
    ("power and clocks", gpu_metrics.POWER),
    ("clock limits", gpu_metrics.CLOCKS),
    ("links", gpu_metrics.LINKS),
    ("health", gpu_metrics.HEALTH),
)


def _named(prefix: str) -> tuple[Metric, ...]:
    return tuple(
        metric
        for metric in CATALOGUE.values()
        if metric.name.startswith(prefix) and metric.name != CORE_BUSY
    )


CORE_BUSY = "host.core_busy_ratio"
"""A metric of one core. The page of the host has a table of all cores."""
_HOST, _WORKLOAD, _CONSOLE = _named("host."), _named("workload."), _named("console.")


class Value(NamedTuple):
    """The newest value of a metric, or the reason why there is none."""

    value: float | None
    reason: str
    source: str
    age_s: float

    @property
    def is_old(self) -> bool:
        return self.age_s > OLD_S


def value_of(view: View, metric: Metric, place: str) -> Value:
    key = series_key(metric.name, place)
    source, age_s = (
        view.substitutes.get(key, metric.source),
        view.now - view.sampled.get(key, view.now),
    )
    if place in view.lost:
        return Value(None, f"device lost: {view.lost[place]}", source, age_s)
    return Value(view.latest.get(key), view.unavailable.get(key, "no sample yet"), source, age_s)


def _device_at(view: View, place: str) -> Device | None:
    return next((device for device in view.devices if device.id == place), None)


def _groups(view: View, place: str, *, whole: bool = True) -> Iterator[tuple[str, list[Metric]]]:
    """The metrics of a place under titles: those that have a value or a reason. `whole`: all
    metrics of a GPU or of the host."""
    device = _device_at(view, place)
    groups = (
        (("console", _CONSOLE),)
        if device is None
        else (*(_GPU_GROUPS if device.is_gpu else (("host", _HOST),)), ("workload", _WORKLOAD))
    )
    for title, metrics in groups:
        everything = whole and device is not None and not device.is_mig and metrics is not _WORKLOAD
        yield (
            title,
            [
                metric
                for metric in metrics
                if everything or _is_reported(view, series_key(metric.name, place))
            ],
        )


def _is_reported(view: View, key: str) -> bool:
    return key in view.latest or key in view.unavailable


def tally(view: View, place: str) -> str:
    """`97 values, 6 n/a`."""
    keys = [
        series_key(metric.name, place) for _, metrics in _groups(view, place) for metric in metrics
    ]
    values = sum(key in view.latest and place not in view.lost for key in keys)
    return f"{values} values, {len(keys) - values} n/a"


# --- the choice of a place ------------------------------------------------------------------------


def places(view: View) -> list[str]:
    """The places that can be chosen: devices in their order (NVLinks belong to their GPU, cores to
    the host), then the console."""
    own = [
        name
        for name in OWN
        if any(series_key(metric.name, name) in view.latest for metric in _CONSOLE)
    ]
    return [device.id for device in view.devices] + own[:1]


def paint_places(view: View, chosen: str, width: int) -> Row:
    """The places side by side. If not all places fit, the places around the chosen place."""
    names = places(view)
    at = names.index(chosen) if chosen in names else 0
    first, last, used = at, at, cell_width(chosen) + 4
    grown = True
    while grown:
        grown = False
        for n in (last + 1, first - 1):
            if 0 <= n < len(names) and used + len(names[n]) + 2 <= width - 4:
                first, last, used, grown = (
                    min(first, n),
                    max(last, n),
                    used + len(names[n]) + 2,
                    True,
                )
    row: list[Segment] = [("… " if first > 0 else "", "dim")]
    for n in range(first, last + 1):
        style = (
            "mark"
            if n == at
            else "alert"
            if names[n] in view.lost
            else "accent"
            if names[n] == view.device
            else "dim"
        )
        row += [(f" {names[n]} ", style)]
    row.append((" …" if last < len(names) - 1 else "", "dim"))
    return line(width, *(part for part in row if part[0]))


# --- the page of a place --------------------------------------------------------------------------


class Item(NamedTuple):
    """A line: a metric of `place`, which is painted only if it is visible, or a painted row. `name`
    identifies the line for a selection."""

    name: str
    row: Row | None = None
    metric: Metric | None = None
    place: str = ""

    @property
    def selectable(self) -> bool:
        """Headings, blanks and reports of trouble cannot be selected."""
        return bool(self.name) and not self.name.startswith(("group ", "trouble "))


def device_items(view: View, place: str, needle: str, width: int) -> list[Item]:
    """Everything about `place`. With a `needle`, the metrics that contain it in the name or the
    meaning."""
    items: list[Item] = []

    def add(title: str, lines: list[Item]) -> None:
        """Add `lines` under a heading; nothing if there are none."""
        if lines:
            items.extend([Item("", blank(width))] if items else [])
            items.extend([Item(f"group {title}", heading(title, width)), *lines])

    if not needle:
        items += _painted("trouble", _trouble(view, place, width))
    for title, metrics in _groups(view, place):
        lines = [
            Item(metric.name, None, metric, place) for metric in metrics if matches(metric, needle)
        ]
        add(
            title,
            lines
            + _painted(
                f"{title} table", lay_out(_tables(view, title, place, needle, width), width)
            ),
        )
    for other in OWN[1:] if place == OWN[0] else ():
        reported = [
            metric
            for _, metrics in _groups(view, other)
            for metric in metrics
            if series_key(metric.name, other) in view.latest
        ]
        add(
            other,
            [
                Item(f"{other} {metric.name}", None, metric, other)
                for metric in reported
                if matches(metric, needle)
            ],
        )
    if not needle:
        device = _device_at(view, place)
        add("about", _painted("about", _about(device, width) if device else []))
        add("sources", _painted("sources", _sources(view, width)))
    return items


def _painted(name: str, rows: Iterable[Row]) -> list[Item]:
    return [Item(f"{name} {n}", row) for n, row in enumerate(rows)]


def _tables(view: View, title: str, place: str, needle: str, width: int) -> list[Table]:
    """The table that belongs to a group of metrics."""
    if title == "links" and any(matches(metric, needle) for metric in gpu_metrics.ONE_NVLINK):
        return _nvlinks(view, place)
    if title == "host" and matches(CATALOGUE[CORE_BUSY], needle):
        return _cores(view, width)
    return []


def matches(metric: Metric, needle: str) -> bool:
    """Whether all words of `needle` are in the name or the meaning."""
    described = f"{metric.name} {metric.meaning}".casefold()
    return all(word in described for word in needle.casefold().split())


def paint_item(view: View, item: Item, width: int, selected: bool) -> Row:
    row = item.row if item.metric is None else _metric_row(view, item.metric, item.place, width)
    assert row is not None
    return [("".join(part for part, _ in row), "mark")] if selected else row


def _metric_row(view: View, metric: Metric, place: str, width: int) -> Row:
    """Name, number, unit, age, source and meaning of a metric, as far as there is room."""
    name = f"  {fit(metric.name, min(34, max(8, width - 24)))} "
    newest = value_of(view, metric, place)
    if newest.value is None:
        return line(
            width, (name, "dim"), (f"{units.NA:>9}", "dim"), (f"  {plain(newest.reason)}", "dim")
        )
    number, unit = _number_and_unit(newest.value, metric)
    alarm = metric.name in ALARMS and newest.value > 0
    age = units.age(newest.age_s) if newest.is_old else ""
    origin = (
        f"  {newest.source}" if width < 100 else f"  {fit(newest.source, 12)}  {metric.meaning}"
    )
    return line(
        width,
        name,
        (f"{number:>9} {unit:<10}", "alert" if alarm else "accent"),
        f" {age:>6}",
        (origin, "dim"),
    )


def _number_and_unit(value: float, metric: Metric) -> tuple[str, str]:
    """The figure for two columns."""
    quantity = units.quantity(value, metric.unit)
    if metric.unit in ("", "0/1") or quantity == units.NA:
        return quantity, ""
    if quantity.endswith(f" {metric.unit}"):  # as declared: the unit may be two words
        return quantity.removesuffix(f" {metric.unit}"), metric.unit
    number, _, unit = quantity.rpartition(" ")  # with a prefix: GB/s
    return number, unit


def paint_metric(
    view: View, item: Item | None, history: History, width: int, height: int
) -> list[Row]:
    """The selected metric in words, and its recent values."""
    rule = line(width, ("─" * width, "dim"))
    if item is None or item.metric is None or height < 2:
        return fill([rule], width, height)
    metric, newest = item.metric, value_of(view, item.metric, item.place)
    if newest.value is None:
        needs = f" Needs {metric.needs} or newer." if metric.needs != "any" else ""
        state = f"n/a: {plain(newest.reason)}.{needs}"
    else:
        state = (
            f"From {newest.source}, "
            f"{f'{units.age(newest.age_s)} ago' if newest.is_old else 'just now'}."
        )
    past = newest.value is not None and height >= 4
    rows = [
        rule,
        *(
            line(width, part)
            for part in wrap(f"{metric.name}: {metric.meaning}. {state}", width, height - 1 - past)
        ),
    ]
    if past:
        columns = max(0, width - len("last 00:00  "))
        values = history(series_key(metric.name, item.place), columns)
        label = f"last {units.clock(columns * SPARK_COLUMN_S)}  "
        trace = shaded(spark(values, 1, 1.0 if metric.unit in ("ratio", "0/1") else None))[0]
        rows = [*fill(rows, width, height - 1), line(width, (label, "dim"), *trace)]
    return fill(rows, width, height)


# --- tables on the page: problems, NVLinks, cores, fixed facts and sources ------------------------

MAX_LINKS = 36
MAX_CORES = 1024
LABEL = 22


def _trouble(view: View, place: str, width: int) -> list[Row]:
    """Problems that affect the values of the page."""
    rows: list[Row] = []
    gpu = place.partition("/")[0]
    if gpu in view.lost:
        rows += paragraph(f"{gpu} is lost: {plain(view.lost[gpu])}", width, "alert")
    elif (
        (device := _device_at(view, place))
        and device.is_gpu
        and (state := state_of(view, place)).kind == "n/a"
    ):
        rows += paragraph(
            f"whether {place} is free is not known: {plain(state.reason)}",
            width,
            "alert" if unreadable(view, gpu) else "",
        )
    elif device and device.is_gpu and state.reason:
        rows += paragraph(f"{place}: {plain(state.text)}", width, "alert")
    if not place.startswith("gpu") and place not in OWN and view.no_gpu_reason:
        rows += paragraph(f"no NVIDIA GPU: {plain(view.no_gpu_reason)}", width)
    for name, source in view.sources.items():
        if source.stuck_s:
            detail = f": {plain(source.detail)}" if source.detail else ""
            problem = "has been opening" if source.opening else "has not answered"
            sentence = f"source {plain(name)} {problem} for {units.age(source.stuck_s)}{detail}"
            rows += paragraph(sentence, width, "" if source.opening else "alert")
    return rows


def _nvlinks(view: View, gpu: str) -> list[Table]:
    """One row for each NVLink. Nothing for a GPU without NVLinks."""
    rows: list[list[Segment]] = []
    for n in range(MAX_LINKS):
        keys = [series_key(column.metric, f"{gpu}/link:{n}") for column in NVLINK_COLUMNS]
        if any(_is_reported(view, key) for key in keys):
            cells = [
                _nvlink_cell(column.metric, view.latest.get(key))
                for column, key in zip(NVLINK_COLUMNS, keys, strict=True)
            ]
            rows.append([(f"link:{n}", ""), *cells])
    columns = [Column("NVLink"), *(Column(column.title, ">") for column in NVLINK_COLUMNS)]
    return [Table(columns, rows, indent=2)] if rows else []


def _nvlink_cell(metric: str, value: float | None) -> Segment:
    unit = CATALOGUE[metric].unit
    style = (
        "dim"
        if value is None
        else "alert"
        if unit == "0/1" and not value
        else "accent"
        if unit == "bytes/s"
        else ""
    )
    return units.quantity(value, unit), style


def _cores(view: View, width: int) -> list[Table]:
    """The busy share of every core in percent: 32, 16, 8 or 4 cores in a row of at most `width`
    cells."""
    count = sum(1 for n in range(MAX_CORES) if series_key(CORE_BUSY, f"cpu:{n}") in view.latest)
    if not count:
        return []
    shares = [
        view.latest.get(series_key(CORE_BUSY, f"cpu:{n}"))
        for n in range(max(count, min(MAX_CORES, view.environment.cores or 0)))
    ]
    each = next((n for n in (32, 16, 8) if 18 + 5 * n <= width), 4)
    rows: list[list[Segment]] = []
    for start in range(0, len(shares), each):
        cells = [
            (units.NA if share is None else f"{share * 100:.0f}", "")
            for share in shares[start : start + each]
        ]
        rows.append(
            [
                (f"cores {start}-{start + len(cells) - 1}", "dim"),
                *cells,
                *((("", ""),) * (each - len(cells))),
            ]
        )
    return [
        Table([Column("busy share, %"), *(Column("", ">") for _ in range(each))], rows, indent=2)
    ]


def _about(device: Device, width: int) -> list[Row]:
    """The fixed facts of a device, without facts that the driver does not report."""
    named = [(FACTS.get(name, name.replace("_", " ")), fact) for name, fact in device.facts.items()]
    rows = labelled("  name", plain(device.name), width, LABEL)
    for label, fact in [*properties(device).items(), *named]:
        rows += labelled(f"  {plain(label)}", plain(fact), width, LABEL) if fact else []
    return rows


def _sources(view: View, width: int) -> list[Row]:
    """Period, missed rounds and problems of each source."""
    rows: list[Row] = []
    for name, source in view.sources.items():
        state = f"read every {source.period_s:.3g} s"
        if source.missed:
            state += f", {source.missed} {'round' if source.missed == 1 else 'rounds'} missed"
        if source.stuck_s:
            stuck = units.age(source.stuck_s)
            state = f"opening for {stuck}" if source.opening else f"stuck for {stuck}; was {state}"
        if source.detail:
            state += f"; {plain(source.detail)}"
        rows += labelled(
            f"  {plain(name)}",
            state,
            width,
            LABEL,
            "alert" if source.stuck_s and not source.opening else "",
        )
    return rows + (labelled("  lost", spans(view.lost), width, LABEL, "alert") if view.lost else [])


# --- all devices, for the terminal ----------------------------------------------------------------

MAX_NAMED_PROCESSES = 3
"""Processes of a GPU that a short list names; more are counted."""


def short_report(view: View) -> Report:
    """A line for each GPU and for the host: what it does, its vital figures, and who uses it; then
    the reasons that matter."""
    gpus = [device for device in view.devices if device.is_gpu]
    states = gpu_states(view, gpus)
    report: Report = []
    if gpus:
        about = [f"driver {plain(view.environment.driver)}"] if view.environment.driver else []
        about += [same_name(view, gpus)] if same_name(view, gpus) else []
        report += [text(GAP.join(about), "dim")] if about else []
        report.append(_short_table(view, gpus, states))
    elif view.no_gpu_reason:
        report.append(text(f"no NVIDIA GPU: {plain(view.no_gpu_reason)}"))
    report += [
        text(GAP.join([f"{host.id}  {plain(host.name)}", *named(view, HOST_LINE, host.id)]))
        for host in view.devices
        if not host.is_gpu
    ]
    return [*report, *_reasons(view, gpus, states)]


def _short_table(view: View, gpus: Sequence[Device], states: Mapping[str, GpuState]) -> Table:
    shown = [
        column
        for column in needed_columns(view, gpus)
        if column.rank in {wanted.rank for wanted in SHORT}
    ]
    names = not same_name(view, gpus)
    rows: list[list[Segment]] = []
    for gpu in gpus:
        state = states[gpu.id]
        row: list[Segment] = [(gpu.id, "")]
        row += [(cut(plain(facts.short_name(gpu.name)), MAX_NAME), "dim")] if names else []
        row.append((state.words, STYLES.get(state.kind, "")))
        row += [(cell(view, column.device, gpu.id), "") for column in shown]
        rows.append([*row, _who(view, gpu.id)])
    columns = [Column("device"), *([Column("name")] if names else []), Column("state")]
    columns += [Column(column.head, column.align) for column in shown]
    return Table([*columns, Column("who")], rows)


def _who(view: View, gpu: str) -> Segment:
    """`ada/4100, root/52011`; of many processes the number and the users."""
    used_by = [process for process in view.processes if process.device == gpu]
    if not used_by:
        return (units.NA, "dim") if gpu in view.processes_missing else ("", "")
    users = {process.pid: plain(process.user[:64]) for process in used_by}
    if len(users) > MAX_NAMED_PROCESSES:
        named_users = ", ".join(dict.fromkeys(filter(None, users.values())))
        return f"{len(users)} processes: {named_users or units.NA}", ""
    return ", ".join(f"{user}/{pid}" if user else f"pid {pid}" for pid, user in users.items()), ""


def _reasons(view: View, gpus: Sequence[Device], states: Mapping[str, GpuState]) -> Report:
    """Why GPUs are in their states, what is wrong with them, and which source does not answer; GPUs
    with the same reason together."""
    told: dict[Segment, list[str]] = {}
    for gpu in gpus:
        state = states[gpu.id]
        new = [fault for fault in faults(view, gpu.id) if fault.is_new]
        slow = view.slow.get(gpu.id, "")
        why = "" if slow else view.processes_missing.get(gpu.id, "")
        # the reason of a sick GPU is its faults, which have times
        told_by_faults = state.kind == "sick" and bool(new)
        parts = [
            plain(state.text) if state.reason and not told_by_faults else "",
            plain(slow) if slow not in state.reason else "",
            ("sick: " if told_by_faults else "") + fault_words(view, new),
            f"processes n/a: {plain(why)}" if why and why not in state.reason else "",
        ]
        style = "alert" if new else STYLES.get(state.kind, "")
        if words := "; ".join(filter(None, parts)):
            told.setdefault((words, style), []).append(gpu.id)
    lines: Report = [
        Line([(f"{spans(ids)}  ", ""), reason], hang=2) for reason, ids in told.items()
    ]
    for name, source in view.sources.items():
        if source.stuck_s and name not in view.slow:
            stuck = f"source {plain(name)} has not answered for {units.age(source.stuck_s)}"
            lines.append(text(f"{stuck}: {plain(source.detail)}", "alert"))
    return lines


def devices_report(view: View) -> Report:
    """Every device with its metrics, links and processes."""
    report: Report = (
        [text(f"driver {plain(view.environment.driver)}"), BLANK] if view.environment.driver else []
    )
    if view.no_gpu_reason:
        report += [text(f"no NVIDIA GPU: {plain(view.no_gpu_reason)}"), BLANK]
    for device in view.devices:
        report += [*_device_report(view, device), BLANK]
    return report[:-1]


def _device_report(view: View, device: Device) -> Report:
    about = properties(device)
    nvlink = f"NVLink {about['NVLink']}" if about["NVLink"] else ""
    title = (device.id, device.name, about["memory"], about["PCIe"], nvlink, about["uuid"])
    report: Report = [Line([("  ".join(plain(part) for part in title if part), "heading")])]
    if device.id in view.lost:
        return [*report, text(f"lost: {plain(view.lost[device.id])}", "alert", indent=2)]
    if device.is_gpu:
        state = state_of(view, device.id)
        report.append(text(f"state: {plain(state.text)}", indent=2))
        if unreadable(view, device.id):
            return report  # a table would give the same reason for each metric
    metrics = [metric for _, group in _groups(view, device.id, whole=False) for metric in group]
    report.append(
        _table(
            "metric",
            "value",
            "source",
            rows=[_metric_cells(view, metric, device.id) for metric in metrics],
        )
    )
    if not device.is_gpu:
        return [*report, *_cores(view, 100)]
    report += _nvlinks(view, device.id)
    if paths := [
        f"{link.b if link.a == device.id else link.a} {link.path}"
        for link in view.links
        if device.id in (link.a, link.b)
    ]:
        report.append(labelled_line("paths", ", ".join(paths), indent=2))
    if processes := [process for process in view.processes if process.device == device.id]:
        report.append(
            _table(
                "process",
                "memory",
                "kind",
                "user and name",
                rows=[_process_cells(process) for process in processes],
            )
        )
    return report


def _table(*heads: str, rows: Sequence[Sequence[Segment]]) -> Table:
    """A table with numbers in the second column."""
    return Table(
        [Column(head, ">" if n == 1 else "<") for n, head in enumerate(heads)], rows, indent=2
    )


def _metric_cells(view: View, metric: Metric, place: str) -> list[Segment]:
    newest = value_of(view, metric, place)
    if newest.value is None:
        return [(metric.name, ""), (units.NA, "dim"), (plain(newest.reason), "dim")]
    return [
        (metric.name, ""),
        (units.quantity(newest.value, metric.unit), "accent"),
        (newest.source, "dim"),
    ]


def _process_cells(process: Process) -> list[Segment]:
    who = plain(" ".join(filter(None, (process.user, process.name))) or process.unseen)
    return [
        (f"process {process.pid}", ""),
        (units.quantity(process.memory_bytes, "bytes"), ""),
        (process.kind, ""),
        (who or "not visible for this user", ""),
    ]
