"""The table of GPUs in the machine overview: a GPU in each line, with its state, its figures, its
faults and its histories."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpuconsole.model import device_columns, units
from gpuconsole.model.device_columns import DeviceColumn
from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import CATALOGUE, series_key
from gpuconsole.model.text import cell_width, cut, plain
from gpuconsole.report.cells import Row, Segment, fill, fit, line, shaded, spark
from gpuconsole.report.machine.columns import (
    GAP,
    ColumnReading,
    activity_column,
    both_ways,
    figure,
    for_devices,
    link_column,
    read,
)
from gpuconsole.report.machine.devices import History
from gpuconsole.report.page import follow
from gpuconsole.report.screen.chart import SPARK_COLUMN_S, ChartWindow, window
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import Fault, GpuState, faults, unreadable

# --- order and selection --------------------------------------------------------------------------

DEVICE, STATE = "device", "state"
"""The columns that are no metrics, by name."""
WORST_FIRST = ("lost", "silent", "n/a", "busy", "free")


class GpuChoice(NamedTuple):
    """What the user has chosen in the table: the column of the order by name, the selected GPU
    (empty: none), and the first line in sight."""

    sort: str = DEVICE
    reverse: bool = False
    selected: str = ""
    offset: int = 0


def in_order(
    view: View, gpus: Sequence[Device], states: Mapping[str, GpuState], choice: GpuChoice
) -> list[Device]:
    """The GPUs in the order of the choice: the largest figures first, the worst states first; GPUs
    without a figure last."""
    if choice.sort == DEVICE:
        return list(reversed(gpus)) if choice.reverse else list(gpus)

    def value(gpu: Device) -> float | None:
        if choice.sort == STATE:
            kind = states[gpu.id].kind
            new = any(fault.is_new for fault in faults(view, gpu.id))
            return (
                -0.5 if new and kind in ("busy", "free") else -float(WORST_FIRST.index(kind)) + 2.0
            )
        column = next(
            (
                wanted.device
                for wanted in _needed_columns(view, gpus)
                if wanted.device.title == choice.sort
            ),
            None,
        )
        return None if column is None else _sum(view, column, gpu.id)

    known = [gpu for gpu in gpus if value(gpu) is not None]
    return [
        *sorted(known, key=lambda gpu: value(gpu) or 0.0, reverse=not choice.reverse),
        *(gpu for gpu in gpus if value(gpu) is None),
    ]


def order_in_words(choice: GpuChoice) -> str:
    """`by power, largest first`; empty for the order of the devices."""
    if choice.sort == DEVICE:
        return "last first" if choice.reverse else ""
    first, last = (
        ("worst first", "best first")
        if choice.sort == STATE
        else ("largest first", "smallest first")
    )
    return f"by {choice.sort}, {last if choice.reverse else first}"


# --- columns --------------------------------------------------------------------------------------


class GpuColumn(NamedTuple):
    """A column of the table, `width` cells wide. `rank`: the lower, the longer the column stays
    where room is short."""

    device: DeviceColumn
    rank: int
    head: str
    width: int
    text: Callable[[View, DeviceColumn, str], str]
    align: str = ">"


def _alone(view: View, column: DeviceColumn, gpu: str) -> str:
    return figure(column, read(view, column, gpu), alone=True)


def _with_top(view: View, column: DeviceColumn, gpu: str) -> str:
    """The figure with the limit that the driver reports: `551/700 W`, `72/87°`."""
    value, top = (
        view.latest.get(series_key(column.metric, gpu)),
        view.latest.get(series_key(column.top, gpu)),
    )
    if CATALOGUE[column.metric].unit == "W":
        return units.watts(value, top)
    return units.degrees(value, f"/{top:.0f}°" if top else "°")


def _sum(view: View, column: DeviceColumn, gpu: str) -> float | None:
    """The value of a column; of a link the sum of both directions."""
    reading = read(view, column, gpu)
    return both_ways(reading) if column.ways else reading.value


def _traffic(view: View, column: DeviceColumn, gpu: str) -> str:
    return units.si(_sum(view, column, gpu), "B/s")


def _state(view: View, column: DeviceColumn, gpu: str) -> str:
    state = read(view, column, gpu).value
    return units.NA if state is None else f"P{state:.0f}"


_ACTIVITY = GpuColumn(device_columns.SM, 1, "SM", 5, _alone)
SM_OR_UTILIZATION = _ACTIVITY._replace(head="SM or util", width=10)
"""The first column if only some GPUs report active SMs, where there is no room for both."""
_UTILIZATION = GpuColumn(device_columns.UTILIZATION, 7, "GPU-Util", 8, _alone)
COLUMNS = (
    _ACTIVITY,
    _UTILIZATION,
    GpuColumn(device_columns.HBM, 2, "HBM used", 12, _alone, "<"),
    GpuColumn(device_columns.HBM_BANDWIDTH, 6, "HBM bw", 6, _alone),
    GpuColumn(device_columns.POWER, 3, "power", 9, _with_top),
    GpuColumn(device_columns.TEMPERATURE, 4, "temp", 7, _with_top, "<"),
    GpuColumn(device_columns.SM_CLOCK, 8, "SM clock", 8, _alone),
    GpuColumn(device_columns.FAN, 9, "fan", 5, _alone),
    GpuColumn(device_columns.NVLINK, 10, "NVLink", 9, _traffic),
    GpuColumn(device_columns.PCIE, 11, "PCIe", 9, _traffic),
    GpuColumn(device_columns.TENSOR, 12, "tensor", 6, _alone),
    GpuColumn(device_columns.PERFORMANCE_STATE, 13, "perf", 4, _state),
)
"""In the order of the screen. Columns of which no GPU has a value are left out, apart from the
first."""
HISTORY_RANK = 5
"""Columns of a higher rank are shown only where a history has room too."""


def _needed_columns(view: View, gpus: Sequence[Device]) -> list[GpuColumn]:
    """The columns that these GPUs have values for, with their words for these GPUs."""
    ids = [gpu.id for gpu in gpus]
    wanted = []
    for column in COLUMNS:
        device = (
            for_devices(view, column.device, ids) if column is not _UTILIZATION else column.device
        )
        known = any(series_key(device.metric, gpu) in view.latest for gpu in ids)
        if known or column is _ACTIVITY or column.rank < HISTORY_RANK:
            unified = device is device_columns.UNIFIED_MEMORY
            wanted.append(
                column._replace(device=device, head="unified" if unified else _head(column, device))
            )
    if wanted[0].device is device_columns.UTILIZATION:  # no GPU reports active SMs
        wanted = [
            wanted[0]._replace(width=_UTILIZATION.width),
            *(column for column in wanted[1:] if column.head != _UTILIZATION.head),
        ]
    return wanted


def _head(column: GpuColumn, device: DeviceColumn) -> str:
    return column.head if device is column.device else device.lead


class _GpuLayout(NamedTuple):
    """The columns, the cells of the ids and of the names (0: not shown), and the cells up to the
    histories."""

    columns: list[GpuColumn]
    ids: int
    names: int
    used: int


def _layout(view: View, gpus: Sequence[Device], width: int, reserve: int) -> _GpuLayout:
    """As many columns as fit whole. Columns from HISTORY_RANK on leave `reserve` cells for the
    faults or a history."""
    ids = max(6, *(cell_width(gpu.id) for gpu in gpus)) if gpus else 6
    names = {facts.short_name(gpu.name) for gpu in _readable(view, gpus)}
    name = min(24, max(map(cell_width, names))) if len(names) > 1 and width >= 80 else 0
    fixed = ids + 2 + (name + 2) * bool(name) + _STATE
    room = width - fixed
    columns = _fitting(_needed_columns(view, gpus), room, reserve)
    if _UTILIZATION not in columns and _has_two_measures(view, gpus):
        columns = _fitting([SM_OR_UTILIZATION, *_needed_columns(view, gpus)[1:]], room, reserve)
    return _GpuLayout(
        columns, ids, name, fixed + sum(column.width + 2 for column in columns) + len(GAP)
    )


def _fitting(wanted: Sequence[GpuColumn], room: int, reserve: int) -> list[GpuColumn]:
    kept = set()
    for column in sorted(wanted, key=lambda column: column.rank):
        if column.width + 2 <= room - (reserve if column.rank > HISTORY_RANK else 0):
            kept.add(column.rank)
            room -= column.width + 2
    return [column for column in wanted if column.rank in kept]


def _has_two_measures(view: View, gpus: Sequence[Device]) -> bool:
    """Whether some of the GPUs report active SMs and others only the utilization of nvidia-smi."""
    measures = {gpu.id: activity_column(view, [gpu.id]).metric for gpu in gpus}
    return (
        len({metric for gpu, metric in measures.items() if series_key(metric, gpu) in view.latest})
        > 1
    )


def _readable(view: View, gpus: Sequence[Device]) -> Sequence[Device]:
    """The GPUs that have a name: a GPU without a handle has none."""
    return [gpu for gpu in gpus if not unreadable(view, gpu.id)] or gpus


def same_name(view: View, gpus: Sequence[Device]) -> str:
    """`8x H200` where all GPUs have one name, which then has no column; otherwise empty."""
    names = {facts.short_name(gpu.name) for gpu in _readable(view, gpus)}
    if len(names) > 1:
        return ""
    return f"{len(gpus)}x {plain(min(names))}" if len(gpus) > 1 else plain(min(names))


# --- the table ------------------------------------------------------------------------------------

MAX_SPARK_ROWS = 40
_STATE = 13
"""Cells of the column that says what a GPU does."""
TRACE_GAP = "  "
MIN_TRACE = 10
"""Cells of a history; a shorter one says nothing and is left out. A GPU has as many histories as
there is room for, side by side below their names."""
MAX_GPUS_WITH_LONG_REASON = 2
MAX_FAULTS = 26
MAX_REASON = 48
"""Cells that are kept free, at most, for faults and for the reason why a figure is missing. With
more than MAX_GPUS_WITH_LONG_REASON GPUs, only MIN_REASON cells are kept free for a reason: the
reason of one GPU must not remove the columns of all GPUs."""
MIN_REASON = 24
"""Cells for the reason why a state is not known. With fewer, the reason stands in place of the
figures."""
MIN_ROWS_FOR_GAP = 3
ROWS_BELOW = 5
"""From so many rows of a GPU on, its histories stand below its figures, over the whole width."""
STYLES = {"free": "good", "lost": "alert", "silent": "alert", "n/a": "dim"}
COLUMN_S = (SPARK_COLUMN_S, 5.0, 10.0)
MIN_HISTORY_S = 90.0
"""The least time that a history shows. A narrow history has wider columns for it. With columns of
two seconds, the histories of eight GPUs would show 22 s at 120 columns, and would need more bytes
than all figures together."""


def column_s(columns: int) -> float:
    """The narrowest columns with which a history of `columns` columns shows MIN_HISTORY_S."""
    return next(
        (seconds for seconds in COLUMN_S if seconds * columns >= MIN_HISTORY_S), COLUMN_S[-1]
    )


def time_of(view: View, columns: int) -> ChartWindow:
    """The time that a history of `columns` columns shows: since the start of the console, at most
    MIN_HISTORY_S or two seconds a column."""
    return window(0.0, view.now, columns, column_s(columns))


class GpuTable(NamedTuple):
    """The rows of the table. Row `head` is the first of GPU `ids[offset]`; each GPU has `each`
    rows, `shown` GPUs are in sight. `trace`: the first cell and the cells of its first history.
    `columns`: the names of the columns by which it can be sorted, from left to right."""

    rows: list[Row]
    ids: list[str]
    offset: int
    shown: int
    each: int
    trace: tuple[int, int]
    columns: list[str]
    head: int = 1


def gpu_table(
    view: View,
    gpus: Sequence[Device],
    states: Mapping[str, GpuState],
    history: History,
    width: int,
    height: int,
    choice: GpuChoice,
) -> GpuTable:
    """A head, then each GPU with its figures and its histories, in `height` rows. Where not all
    GPUs fit, the table scrolls."""
    ordered = in_order(view, gpus, states, choice)
    room = max(0, height - 1)
    each = min(MAX_SPARK_ROWS, max(1, room // max(1, len(ordered))))
    most = max(1, room // each)
    at = next((n for n, gpu in enumerate(ordered) if gpu.id == choice.selected), 0)
    offset = (
        follow(choice.offset, at, most, len(ordered))
        if choice.selected
        else max(0, min(choice.offset, len(ordered) - most))
    )
    listed = ordered[offset : offset + most]
    faults_of = {gpu.id: faults(view, gpu.id) for gpu in gpus}
    longest = min(
        MAX_FAULTS,
        max((len(_fault_words(view, of_gpu)) for of_gpu in faults_of.values()), default=0),
    )
    below = each >= ROWS_BELOW
    measures = {gpu.id: activity_column(view, [gpu.id]) for gpu in gpus}
    reason = min(
        MAX_REASON if len(gpus) <= MAX_GPUS_WITH_LONG_REASON else MIN_REASON,
        max(cell_width(_remark(view, gpu.id, states[gpu.id], measures[gpu.id])) for gpu in gpus),
    )
    layout = _layout(view, gpus, width, len(GAP) + max(longest, reason, 0 if below else MIN_TRACE))
    remarks = longest if layout.used + longest <= width else 0
    used = 8 if below else min(width, layout.used + (remarks + len(TRACE_GAP) if remarks else 0))
    traces, cells = _arrangement(view, gpus, max(0, width - used))
    past = {
        gpu.id: [
            _past(history, column, gpu.id, cells) for column in (measures[gpu.id], *traces[1:])
        ][: len(traces)]
        for gpu in listed
    }
    highest = [
        max((value or 0.0 for of_gpu in past.values() for value in of_gpu[n]), default=0.0)
        for n in range(len(traces))
    ]
    span_s = time_of(view, cells).per_column_s * cells
    titles = TRACE_GAP.join(
        _trace_title(column, high, cells, span_s)
        for column, high in zip(traces, highest, strict=True)
    )
    rows = [_heads(layout, choice, remarks, "" if below else titles, width)]
    for gpu in listed:
        start, whole = _row_start(
            view, gpu, states[gpu.id], layout, faults_of[gpu.id], remarks, width
        )
        why = "" if whole else _remark(view, gpu.id, states[gpu.id], measures[gpu.id])
        # one scale for all GPUs
        tops = [
            read(view, column, gpu.id).top or high
            for column, high in zip(traces, highest, strict=True)
        ]
        histories = list(zip(past[gpu.id], tops, strict=True))
        if whole:
            painted = [line(width, *start)]
        elif below:
            painted = [
                line(width, *start, (plain(why), "dim")),
                line(width, " " * used, (titles, "dim")),
            ]
            painted += [line(width, " " * used, *row) for row in _side_by_side(histories, each - 2)]
        elif why:
            painted = [line(width, *line(used, *start), (plain(why), "dim"))]
        else:
            traced = _side_by_side(histories, each)
            # a low history has the name on its base line
            base = 0 if each >= MIN_ROWS_FOR_GAP else len(traced) - 1
            begins: list[Row] = [
                line(used, *start) if n == base else [(" " * used, "")] for n in range(len(traced))
            ]
            painted = [line(width, *begin, *row) for begin, row in zip(begins, traced, strict=True)]
        if gpu.id == choice.selected:
            at = _text_row(painted)
            painted = [
                [("".join(text for text, _ in row), "mark")] if n == at else row
                for n, row in enumerate(painted)
            ]
        rows += fill(painted, width, each)
    names = [DEVICE, STATE, *(column.device.title for column in layout.columns)]
    return GpuTable(
        fill(rows, width, height),
        [gpu.id for gpu in ordered],
        offset,
        len(listed),
        each,
        (used, cells if traces else 0),
        names,
    )


def _text_row(rows: Sequence[Row]) -> int:
    """The row of a GPU that has its name."""
    return next((n for n, row in enumerate(rows) if row and row[0][0].strip()), 0)


def _heads(layout: _GpuLayout, choice: GpuChoice, remarks: int, titles: str, width: int) -> Row:
    """The heads of the columns. The column of the order is marked, once the user has chosen one."""
    chosen = (
        choice.sort if choice != GpuChoice(selected=choice.selected, offset=choice.offset) else ""
    )
    heads: Row = [(fit(DEVICE, layout.ids) + "  ", "heading" if chosen == DEVICE else "dim")]
    heads += [(fit("", layout.names) + "  ", "dim")] if layout.names else []
    heads.append((fit(STATE, _STATE), "heading" if chosen == STATE else "dim"))
    for column in layout.columns:
        heads.append(
            (
                "  " + fit(column.head, column.width, column.align),
                "heading" if column.device.title == chosen else "dim",
            )
        )
    heads.append((GAP if layout.used <= width else "", ""))
    heads += [(fit("faults", remarks) + TRACE_GAP * bool(titles), "dim")] if remarks else []
    return line(width, *heads, (titles, "dim"))


def _row_start(
    view: View,
    gpu: Device,
    state: GpuState,
    layout: _GpuLayout,
    gpu_faults: Sequence[Fault],
    remarks: int,
    width: int,
) -> tuple[Row, bool]:
    """The beginning of a line, up to the histories; and whether it is the whole line, because there
    are no figures."""
    start: Row = [(fit(gpu.id, layout.ids) + "  ", "accent" if gpu.id == view.device else "")]
    if layout.names:
        name = "" if unreadable(view, gpu.id) else plain(facts.short_name(gpu.name))
        start.append((fit(name, layout.names) + "  ", "dim"))
    if instead := _instead_of_figures(view, gpu.id, state, gpu_faults, width - layout.used):
        return [*start, instead], True
    new = [fault for fault in gpu_faults if fault.is_new]
    doing: Segment = (state.words, STYLES.get(state.kind, ""))
    if new and not remarks:
        doing = (_fault_words(view, new[:1], seconds=False), "alert")
    start.append((fit(doing[0], _STATE), doing[1]))
    for column in layout.columns:
        text = (
            _activity(view, gpu.id)
            if column is SM_OR_UTILIZATION
            else column.text(view, column.device, gpu.id)
        )
        style = (
            "alert"
            if _is_hot(view, column.device, gpu.id)
            else "dim"
            if text.strip() == units.NA
            else ""
        )
        start.append((f"  {text:{column.align}{column.width}}", style))
    start.append((GAP if layout.used <= width else "", ""))
    if remarks:
        room = TRACE_GAP if layout.used + remarks + len(TRACE_GAP) <= width else ""
        start += [
            (fit(_fault_words(view, gpu_faults), remarks), "alert" if new else "dim"),
            (room, ""),
        ]
    return start, False


def _is_hot(view: View, column: DeviceColumn, gpu: str) -> bool:
    """Whether a value is at a limit that the driver reports, and needs action there."""
    value, top = (
        view.latest.get(series_key(column.metric, gpu)),
        view.latest.get(series_key(column.top, gpu)),
    )
    return column.hot and value is not None and top is not None and value >= top


def _instead_of_figures(
    view: View, gpu: str, state: GpuState, gpu_faults: Sequence[Fault], room: int
) -> Segment | None:
    """What stands in place of the figures of a GPU that has none, or whose state has a reason that
    does not fit into the `room` beside them."""
    if state.kind == "lost" or unreadable(view, gpu):
        errors = "".join(
            f"; {_fault_words(view, [fault])}" for fault in gpu_faults if fault.t is not None
        )
        return plain(state.text) + errors, "alert"
    return (plain(state.text), "dim") if state.kind == "n/a" and room < MIN_REASON else None


def _fault_words(view: View, gpu_faults: Iterable[Fault], seconds: bool = True) -> str:
    """`XID 79 12:50:02, heat slowdown`. `seconds`: whether a time has them."""
    words = []
    for fault in gpu_faults:
        moment = ""
        if fault.t is not None and view.wall:
            at = datetime.datetime.fromtimestamp(view.wall - view.now + fault.t)
            moment = f" {at:%H:%M:%S}" if seconds else f" {at:%H:%M}"
        words.append(fault.words + moment)
    return ", ".join(words)


def _activity(view: View, gpu: str) -> str:
    """How busy a GPU is, in the column of two measures: the utilization of nvidia-smi has its
    name."""
    busy = activity_column(view, [gpu])
    text = _alone(view, busy, gpu)
    return f"util {text.strip()}" if busy is device_columns.UTILIZATION else text


def _remark(view: View, gpu: str, state: GpuState, busy: DeviceColumn) -> str:
    """What stands in place of the histories of a GPU: why its state is not known, or why it is not
    known how busy it is."""
    if state.kind == "n/a":
        return state.reason
    why = view.unavailable.get(series_key(busy.metric, gpu))
    if not why or read(view, busy, gpu).value is not None:
        return ""
    return f"{busy.lead} n/a: {why}"


# --- histories ------------------------------------------------------------------------------------


def _arrangement(view: View, gpus: Sequence[Device], room: int) -> tuple[list[DeviceColumn], int]:
    """The histories of each GPU that have room beside one another, the most useful first; and the
    cells of each."""
    ids = [gpu.id for gpu in gpus]
    wanted = [
        *(
            for_devices(view, column, ids)
            for column in (device_columns.SM, device_columns.HBM_BANDWIDTH)
        ),
        link_column(view, ids),
    ]
    gap = len(TRACE_GAP)
    count = min(len(wanted), (room + gap) // (MIN_TRACE + gap))
    return (wanted[:count], (room + gap) // count - gap) if count > 0 else ([], 0)


def _trace_title(column: DeviceColumn, highest: float, cells: int, span_s: float) -> str:
    """`SM 0-100 %, 90 s`: what a history shows, the top of its scale, and its time; as much of it
    as fits above the history."""
    span = f"{span_s:.0f} s"
    scale = (
        "0-100 %"
        if column.full == 1.0
        else f"0-{units.si(highest, 'B/s').strip()}"
        if highest
        else ""
    )
    forms = (
        f"{column.short_title} {scale}, {span}" if scale else "",
        f"{column.short_title}, {span}",
        column.short_title,
    )
    return fit(
        next(
            (form for form in forms if form and cell_width(form) <= cells),
            cut(column.short_title, cells),
        ),
        cells,
    )


Past = tuple[Sequence[float | None], float | None]
"""A history, and the top of its scale."""


def _side_by_side(histories: Sequence[Past], height: int) -> list[Row]:
    """The histories of a GPU beside one another. From three rows on, the last row is blank."""
    rows = height - (height >= MIN_ROWS_FOR_GAP)
    painted = [shaded(spark(values, rows, top, apart=True)) for values, top in histories]
    gaps: list[Row] = [[(TRACE_GAP, "")] if n else [] for n in range(len(painted))]
    return [
        [part for gap, texts in zip(gaps, painted, strict=True) for part in (*gap, *texts[y])]
        for y in range(rows)
    ]


def _past(history: History, column: DeviceColumn, gpu: str, cells: int) -> list[float | None]:
    """The history of a column; of a link the sum of both directions."""
    values = history(series_key(column.metric, gpu), cells)
    if not column.ways:
        return values
    others = history(series_key(column.beside, gpu), cells)
    return [
        both_ways(ColumnReading(first, second, None))
        for first, second in zip(values, others, strict=True)
    ]
