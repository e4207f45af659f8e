"""The table of GPUs in the machine overview: a GPU in each line, with its state, its figures, its
faults and its histories."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from gpuconsole.model import device_columns, units
from gpuconsole.model.device_columns import DeviceColumn
from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import series_key
from gpuconsole.model.text import cell_width, cut, plain
from gpuconsole.report.cells import (
    Row,
    Segment,
    blank,
    fill,
    fit,
    line,
    row_width,
    shaded,
    spark,
)
from gpuconsole.report.machine.columns import (
    GAP,
    SM_OR_UTILIZATION,
    ColumnReading,
    History,
    activity_column,
    cell,
    for_devices,
    has_two_measures,
    keeps_width,
    link_column,
    of_device,
    read,
    scale_top,
)
from gpuconsole.report.page import follow
from gpuconsole.report.screen.chart import SPARK_COLUMN_S, ChartWindow, window
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import SLOW_DRIVER, Fault, GpuState, faults, unreadable

# --- order and selection --------------------------------------------------------------------------

DEVICE, STATE = "device", "state"
"""The columns that are no metrics, by name."""
WORST_FIRST = ("lost", "silent", "sick", "n/a", "busy", "idle", "free")
"""The kinds of states in the order of the table; another kind stands with n/a. A GPU with a new
fault stands before the busy ones."""


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

    value = (
        _badness(view, states)
        if choice.sort == STATE
        else _value_of(
            view,
            [*needed_columns(view, gpus), *needed_columns(view, gpus, together=True)],
            choice.sort,
        )
    )
    known = {gpu.id: size for gpu in gpus if (size := value(gpu)) is not None}
    return [
        *sorted(
            (gpu for gpu in gpus if gpu.id in known),
            key=lambda gpu: known[gpu.id],
            reverse=not choice.reverse,
        ),
        *(gpu for gpu in gpus if gpu.id not in known),
    ]


def _badness(view: View, states: Mapping[str, GpuState]) -> Callable[[Device], float]:
    """How bad the state of a GPU is: the larger, the worse."""
    ranks = {kind: -float(n) for n, kind in enumerate(WORST_FIRST)}

    def value(gpu: Device) -> float:
        by_kind = ranks.get(states[gpu.id].kind, ranks["n/a"])
        new = any(fault.is_new for fault in faults(view, gpu.id))
        return max(by_kind, ranks["busy"] + 0.5) if new else by_kind

    return value


def _value_of(
    view: View, columns: Iterable[GpuColumn], title: str
) -> Callable[[Device], float | None]:
    """The value of a GPU in the column of this title."""
    column = next((column.device for column in columns if column.device.title == title), None)
    return lambda gpu: None if column is None else read(view, column, gpu.id).total


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
    """A column of the table, as wide as its widest text. `rank`: the lower, the longer the column
    stays where room is short."""

    device: DeviceColumn
    rank: int
    head: str
    align: str = ">"


_ACTIVITY = GpuColumn(device_columns.SM, 1, "SM")
_UTILIZATION = GpuColumn(device_columns.UTILIZATION, 7, "GPU-Util")
_MEMORY = GpuColumn(device_columns.HBM, 2, "HBM used", "<")
_POWER = GpuColumn(device_columns.POWER, 3, "power")
_TEMPERATURE = GpuColumn(device_columns.TEMPERATURE, 4, "temp", "<")
COLUMNS = (
    _ACTIVITY,
    _UTILIZATION,
    _MEMORY,
    GpuColumn(device_columns.HBM_BANDWIDTH, 6, "HBM bw"),
    _POWER,
    _TEMPERATURE,
    GpuColumn(device_columns.SM_CLOCK, 8, "SM clock"),
    GpuColumn(device_columns.FAN, 9, "fan"),
    GpuColumn(device_columns.NVLINK, 10, "NVLink"),
    GpuColumn(device_columns.PCIE, 11, "PCIe"),
    GpuColumn(device_columns.TENSOR, 12, "tensor"),
    GpuColumn(device_columns.PERFORMANCE_STATE, 13, "perf"),
)
"""In the order of the screen. Columns of which no GPU has a value are left out, apart from the
first."""
HISTORY_RANK = 5
"""Columns of a higher rank are shown only where a history has room too."""
SHORT = (_ACTIVITY, _UTILIZATION, _MEMORY, _POWER, _TEMPERATURE)
"""The columns of a short list."""
LAST_KEPT_RANK = 2
"""Columns up to this rank are never covered by a reason."""


def needed_columns(view: View, gpus: Sequence[Device], together: bool = False) -> list[GpuColumn]:
    """The columns that these GPUs have values for, with their words for these GPUs. `together`: the
    two measures of how busy GPUs are share a column."""
    ids = [gpu.id for gpu in gpus]
    wanted = []
    for column in COLUMNS:
        device = column.device
        if column is not _UTILIZATION:
            device = for_devices(view, device, ids)
        if device is SM_OR_UTILIZATION and not together:
            device = column.device
        known = any(series_key(device.metric, gpu) in view.latest for gpu in ids)
        if known or column is _ACTIVITY or column.rank < HISTORY_RANK:
            wanted.append(column._replace(device=device, head=_head(column, device)))
    if wanted[0].device is device_columns.SM:
        return wanted
    return [column for column in wanted if column.rank != _UTILIZATION.rank]


def _head(column: GpuColumn, device: DeviceColumn) -> str:
    if device is column.device:
        return column.head
    return device.lead if column is _ACTIVITY else device.short_title


class _ColumnCells(NamedTuple):
    """A column with the texts of the GPUs in sight, and the cells of the widest text of all."""

    column: GpuColumn
    texts: Mapping[str, str]
    width: int


def _cells_of(
    view: View, column: GpuColumn, gpus: Sequence[Device], listed: Sequence[Device]
) -> _ColumnCells:
    measured = listed if keeps_width(column.device) else gpus
    texts = {gpu.id: cell(view, column.device, gpu.id) for gpu in measured}
    return _ColumnCells(column, texts, max(map(len, [column.head, *texts.values()])))


class _GpuLayout(NamedTuple):
    """The columns, and the cells of the ids, of the names (0: not shown) and of the states. `ends`:
    the cell after the state, then that after each column. `used`: the first cell of the
    histories."""

    columns: list[_ColumnCells]
    ids: int
    names: int
    states: int
    ends: list[int]

    @property
    def used(self) -> int:
        return self.ends[-1] + len(GAP)


def _layout(
    view: View,
    gpus: Sequence[Device],
    listed: Sequence[Device],
    words: Iterable[str],
    width: int,
    reserve: int,
) -> _GpuLayout:
    """As many columns as fit whole. `words`: what stands in the column of the states. Columns from
    HISTORY_RANK on leave `reserve` cells for notes or a history."""
    ids = max([len(DEVICE), *(cell_width(gpu.id) for gpu in gpus)])
    names = short_names(view, gpus)
    longest = MAX_NAME if width >= MIN_WIDTH_FOR_LONG_NAMES else MAX_SHORT_NAME
    name = min(longest, max(map(cell_width, names))) if len(names) > 1 and width >= 80 else 0
    doing = max([MIN_STATE, *map(cell_width, words)])
    fixed = ids + 2 + (name + 2) * bool(name) + doing
    room = width - fixed
    columns = _fitting(view, needed_columns(view, gpus), gpus, listed, room, reserve)
    kept = {each.column.rank for each in columns}
    if _UTILIZATION.rank not in kept and has_two_measures(view, [gpu.id for gpu in gpus]):
        columns = _fitting(
            view, needed_columns(view, gpus, together=True), gpus, listed, room, reserve
        )
    ends = list(accumulate((each.width + 2 for each in columns), initial=fixed))
    return _GpuLayout(columns, ids, name, doing, ends)


def _fitting(
    view: View,
    wanted: Sequence[GpuColumn],
    gpus: Sequence[Device],
    listed: Sequence[Device],
    room: int,
    reserve: int,
) -> list[_ColumnCells]:
    kept = []
    for column in sorted(wanted, key=lambda column: column.rank):
        free = room - (reserve if column.rank > HISTORY_RANK else 0) - 2
        if len(column.head) > free:
            continue
        cells = _cells_of(view, column, gpus, listed)
        if cells.width <= free:
            kept.append(cells)
            room -= cells.width + 2
    return sorted(kept, key=lambda cells: wanted.index(cells.column))


def _has_name(view: View, gpu: Device) -> bool:
    """Whether the driver has told the name of a GPU: not of one without a handle."""
    return bool(gpu.uuid or gpu.memory_bytes) and not unreadable(view, gpu.id)


def short_names(view: View, gpus: Sequence[Device]) -> set[str]:
    """The names of the kinds of GPUs among these."""
    known = [gpu for gpu in gpus if _has_name(view, gpu)]
    return {facts.short_name(gpu.name) for gpu in known or gpus}


def same_name(view: View, gpus: Sequence[Device]) -> str:
    """`8x H200` where all GPUs have one name, which then has no column; otherwise empty."""
    names = short_names(view, gpus)
    if len(names) > 1:
        return ""
    return f"{len(gpus)}x {plain(min(names))}" if len(gpus) > 1 else plain(min(names))


# --- the table ------------------------------------------------------------------------------------

MAX_SPARK_ROWS = 40
MIN_STATE = 11
"""Cells of the column that says what a GPU does, at least: nothing moves when a process starts."""
MAX_NAME = 24
MAX_SHORT_NAME = 16
MIN_WIDTH_FOR_LONG_NAMES = 120
"""Cells of the names of different GPUs, and the width of the table from which on they are long."""
TRACE_GAP = "  "
MIN_TRACE = 10
MAX_TRACES = 3
"""Cells of a history; a shorter one says nothing and is left out. A GPU has as many histories as
there is room for, side by side below their names."""
MAX_GPUS_WITH_LONG_REASON = 2
MAX_FAULTS = 26
MAX_REASON = 48
"""Cells that are kept free, at most, for faults and for the reason why a figure is missing. With
more than MAX_GPUS_WITH_LONG_REASON GPUs, only MIN_REASON cells are kept free for a reason: the
reason of one GPU must not remove the columns of all GPUs."""
MIN_REASON = 24
"""Cells for the reason of a state. With fewer, the reason covers the last columns of its GPU."""
COVERING = ("n/a", "silent")
"""The kinds of states whose reason may cover figures."""
MIN_ROWS_FOR_GAP = 3
ROWS_BELOW = 5
"""From so many rows of a GPU on, its histories stand below its figures, over the whole width."""
BELOW = 8
"""The first cell of histories that stand below the figures."""
STYLES = {
    "free": "good", "idle": "wait", "lost": "alert", "silent": "alert", "sick": "alert",
    "n/a": "dim",
}  # fmt: skip
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
    below = each >= ROWS_BELOW
    notes: Mapping[str, _Note] = {gpu.id: _note(view, gpu.id, states[gpu.id]) for gpu in gpus}
    layout, notes = _with_notes(view, gpus, listed, states, notes, width, 0 if below else MIN_TRACE)
    used = BELOW if below else min(width, layout.used)
    histories = _histories(view, gpus, listed, history, max(0, width - used))
    rows = [_heads(layout, choice, "" if below else histories.titles, width)]
    for gpu in listed:
        row = _GpuRow(view, gpu, states[gpu.id], notes[gpu.id], layout, width)
        past = histories.of(view, gpu.id)
        if whole := _instead_of_figures(view, gpu.id, states[gpu.id], notes[gpu.id]):
            painted = [line(width, *row.names(), whole)]
        elif below:
            painted = [*row.over_histories(), line(width, " " * used, (histories.titles, "dim"))]
            painted += [
                line(width, " " * used, *traced)
                for traced in _side_by_side(past, each - len(painted))
            ]
        else:
            painted = row.beside_histories(_side_by_side(past, each), each)
        if gpu.id == choice.selected:
            named = _text_row(painted)
            painted = [
                [("".join(text for text, _ in row), "mark")] if n == named else row
                for n, row in enumerate(painted)
            ]
        rows += fill(painted, width, each)
    names = [DEVICE, STATE, *(each.column.device.title for each in layout.columns)]
    return GpuTable(
        fill(rows, width, height),
        [gpu.id for gpu in ordered],
        offset,
        len(listed),
        each,
        (used, histories.cells if histories.columns else 0),
        names,
    )


def _text_row(rows: Sequence[Row]) -> int:
    """The row of a GPU that has its name."""
    return next((n for n, row in enumerate(rows) if row and row[0][0].strip()), 0)


def _heads(layout: _GpuLayout, choice: GpuChoice, titles: str, width: int) -> Row:
    """The heads of the columns. The column of the order is marked, once the user has chosen one."""
    chosen = (
        choice.sort if choice != GpuChoice(selected=choice.selected, offset=choice.offset) else ""
    )
    heads: Row = [(fit(DEVICE, layout.ids) + "  ", "heading" if chosen == DEVICE else "dim")]
    heads += [(fit("", layout.names) + "  ", "dim")] if layout.names else []
    heads.append((fit(STATE, layout.states), "heading" if chosen == STATE else "dim"))
    heads += [
        (
            "  " + fit(each.column.head, each.width, each.column.align),
            "heading" if each.column.device.title == chosen else "dim",
        )
        for each in layout.columns
    ]
    return line(width, *heads, *([(GAP, ""), (titles, "dim")] if titles else []))


def _is_hot(view: View, column: DeviceColumn, gpu: str) -> bool:
    """Whether a value is at a limit that the driver reports, and needs action there."""
    value, top = (
        view.latest.get(series_key(column.metric, gpu)),
        view.latest.get(series_key(column.top, gpu)),
    )
    return column.hot and value is not None and top is not None and value >= top


# --- what is wrong with a GPU, and why a figure is missing ----------------------------------------


class _Note(NamedTuple):
    """What stands after the figures of a GPU, in front of its histories. `forms`: its faults, in
    ever fewer words. `short`: its worst new fault, for the column of the states. `reason`: why the
    GPU is in its state, or which call of its driver is slow; `remark`: why it is not known how busy
    it is. `before`: the faults that stand before the reason."""

    forms: Sequence[Row] = ()
    short: str = ""
    reason: str = ""
    remark: str = ""
    before: str = ""

    @property
    def rows(self) -> list[Row]:
        """The note in ever fewer words."""
        if not (why := self.reason or self.remark):
            return list(self.forms)
        if not (self.forms and self.before):
            return [[(why, "dim")], *self.forms]
        return [[(f"{self.before}, ", self.forms[0][0][1]), (why, "dim")], *self.forms]


def _note(view: View, gpu: str, state: GpuState) -> _Note:
    """The note of a GPU. What its state says already is not said again."""
    found = [fault for fault in faults(view, gpu) if fault.words not in state.words]
    slow = view.slow.get(gpu, "")
    reason = "" if state.kind in ("lost", "sick") else state.reason
    if slow and slow not in reason:
        reason = ", ".join(filter(None, (reason, slow)))
    if not found:
        return _Note(reason=plain(reason), remark="" if reason else plain(_remark(view, gpu)))
    new = [fault for fault in found if fault.is_new]
    style = "alert" if new else "dim"
    texts = [fault_words(view, found), fault_words(view, new), fault_words(view, new[:1])]
    short = fault_words(view, new[:1], seconds=False)
    forms: list[Row] = [[(text, style)] for text in dict.fromkeys([*texts, short]) if text]
    if any(fault.words in reason for fault in found):
        reason = ""
    # the call says that the driver is slow
    before = fault_words(view, [fault for fault in found if fault.words != SLOW_DRIVER])
    return _Note(forms, short, plain(reason), before=before)


def _remark(view: View, gpu: str) -> str:
    """Why it is not known how busy a GPU is; empty where it is known."""
    busy = activity_column(view, (gpu,))
    key = series_key(busy.metric, gpu)
    why = view.unavailable.get(key, "") if key not in view.latest else ""
    return f"{busy.lead} n/a: {why}" if why else ""


def _with_notes(
    view: View,
    gpus: Sequence[Device],
    listed: Sequence[Device],
    states: Mapping[str, GpuState],
    notes: Mapping[str, _Note],
    width: int,
    least: int,
) -> tuple[_GpuLayout, Mapping[str, _Note]]:
    """The layout, with room for the notes or for `least` cells; and the notes that stand there.
    Where a row has no room for the new faults of a GPU, the faults replace its state."""
    shown = [gpu for gpu in gpus if not _instead_of_figures(view, gpu.id, states[gpu.id], _Note())]
    most = MAX_REASON if len(gpus) <= MAX_GPUS_WITH_LONG_REASON else MIN_REASON
    wanted = [
        min(MAX_FAULTS if notes[gpu.id].forms else most, row_width(rows[0]))
        for gpu in shown
        if (rows := notes[gpu.id].rows)
    ]
    reserve = len(GAP) + max(least, *wanted, 0)
    words = {gpu.id: states[gpu.id].words for gpu in shown}
    layout = _layout(view, gpus, listed, words.values(), width, reserve)
    room = width - layout.used
    faulty = [gpu for gpu in words if notes[gpu].short]
    if all(any(row_width(form) <= room for form in notes[gpu].forms) for gpu in faulty):
        return layout, notes
    words |= {gpu: notes[gpu].short for gpu in faulty}
    layout = _layout(view, gpus, listed, words.values(), width, reserve)
    return layout, {**notes, **{gpu: notes[gpu]._replace(forms=()) for gpu in faulty}}


def _instead_of_figures(view: View, gpu: str, state: GpuState, note: _Note) -> Segment | None:
    """What stands in place of the figures of a GPU that has none."""
    if state.kind != "lost" and not unreadable(view, gpu):
        return None
    errors = "".join(f"; {text}" for form in note.forms[:1] for text, _ in form)
    return plain(state.text) + errors, "alert"


class _GpuRow(NamedTuple):
    """The line of a GPU that has figures."""

    view: View
    gpu: Device
    state: GpuState
    note: _Note
    layout: _GpuLayout
    width: int

    def names(self) -> Row:
        """The id, and the name where the GPUs have different ones."""
        view, gpu, layout = self.view, self.gpu, self.layout
        row: Row = [(fit(gpu.id, layout.ids) + "  ", "accent" if gpu.id == view.device else "")]
        if layout.names:
            name = plain(facts.short_name(gpu.name)) if _has_name(view, gpu) else ""
            row.append((fit(name, layout.names) + "  ", "dim"))
        return row

    def _figures(self, columns: int) -> Row:
        """The names, the state, and the cells of the first `columns` columns."""
        in_state = bool(self.note.short) and not self.note.forms
        doing: Segment = (
            (self.note.short, "alert")
            if in_state
            else (self.state.words, STYLES.get(self.state.kind, ""))
        )
        row = [*self.names(), (fit(doing[0], self.layout.states), doing[1])]
        for each in self.layout.columns[:columns]:
            text = each.texts[self.gpu.id]
            style = (
                "dim"
                if self.state.kind == "silent" or text.strip() == units.NA
                else "alert"
                if _is_hot(self.view, each.column.device, self.gpu.id)
                else ""
            )
            row.append((f"  {text:{each.column.align}{each.width}}", style))
        return row

    def _placed(self, rows: Sequence[Row]) -> tuple[int, Row]:
        """The number of columns that are left to the GPU, and the form of the note that fits after
        them. A note covers the last columns where these have no value; only a reason is cut. Where
        there is little room, the reason of a state covers the last columns with a value, too."""
        # old figures of a silent GPU count less than the reason
        known = self._kept_columns() if self.state.kind == "silent" else self._known_columns()
        explains = bool(self.note.reason or self.note.remark)
        for n, row in enumerate(rows):
            if (left := self._columns_before(row, known)) is not None:
                return left, row
            if n == 0 and explains and self._room(known) >= MIN_REASON:
                return known, row
        if not rows or not self.note.reason or self.state.kind not in COVERING:
            return len(self.layout.columns), []
        kept = self._kept_columns()
        left = self._columns_before(rows[0], kept)
        return kept if left is None else left, rows[0]

    def _known_columns(self) -> int:
        """The number of columns up to the last with a value."""
        texts = [each.texts[self.gpu.id].strip() for each in self.layout.columns]
        return max((n + 1 for n, text in enumerate(texts) if text != units.NA), default=0)

    def _kept_columns(self) -> int:
        """The number of columns that the reason of a state may not cover."""
        ranks = [each.column.rank for each in self.layout.columns]
        kept = max((n + 1 for n, rank in enumerate(ranks) if rank <= LAST_KEPT_RANK), default=0)
        return min(kept, self._known_columns())

    def _room(self, columns: int) -> int:
        """The cells after so many columns."""
        return self.width - self.layout.ends[columns] - len(GAP)

    def _columns_before(self, row: Row, least: int) -> int | None:
        """The largest number of columns, from `least` on, after which the row fits."""
        return next(
            (
                n
                for n in range(len(self.layout.columns), least - 1, -1)
                if row_width(row) <= self._room(n)
            ),
            None,
        )

    def _with_note(self, rows: Sequence[Row]) -> Row:
        """The figures, and what fits of the note."""
        columns, note = self._placed(rows)
        row = self._figures(columns)
        if not note:
            return row
        room = max(0, self.width - row_width(row) - len(GAP))
        return [*row, (GAP, ""), *(part for part in line(room, *note) if part[0].strip())]

    @property
    def _has_room(self) -> bool:
        """Whether the note needs no row of its own. A reason may be cut."""
        room = self._room(self._known_columns())
        least = MIN_REASON if self.note.reason or self.note.remark else room + 1
        return not self.note.rows or any(
            min(row_width(row), least) <= room for row in self.note.rows
        )

    def over_histories(self) -> list[Row]:
        """The figures, and the note beside or below them."""
        if self._has_room:
            return [line(self.width, *self._with_note(self.note.rows))]
        return [
            line(self.width, *self._figures(len(self.layout.columns))),
            line(self.width, " " * BELOW, *self.note.rows[0]),
        ]

    def beside_histories(self, traced: Sequence[Row], height: int) -> list[Row]:
        """The figures and the note in front of the histories, of which the note covers the oldest
        columns. A low history has the name on its base line."""
        used = min(self.width, self.layout.used)
        base = 0 if height >= MIN_ROWS_FOR_GAP else len(traced) - 1
        starts: dict[int, Row] = {base: self._with_note(self.note.rows)}
        if len(traced) > 1 and not self._has_room:
            starts = {
                base: self._figures(len(self.layout.columns)),
                1 - base: [(" " * BELOW, ""), *self.note.rows[0]],
            }
        widest = max(map(row_width, starts.values()))
        covered = widest + len(TRACE_GAP) - used if self.note.rows else 0
        covered = max(0, min(covered, self.width - used))
        return [
            line(
                self.width,
                *_padded(starts.get(n, []), used + covered),
                *_without_first(row, covered),
            )
            for n, row in enumerate(traced)
        ]


def _padded(row: Row, width: int) -> Row:
    """The row with blanks up to `width` cells."""
    return [*row, *blank(width - row_width(row))]


def _without_first(row: Row, cells: int) -> Row:
    """The row without its first cells; every letter of it has one cell."""
    kept: Row = []
    for text, style in row:
        kept.append((text[cells:], style))
        cells = max(0, cells - len(text))
    return kept


def fault_words(view: View, gpu_faults: Iterable[Fault], seconds: bool = True) -> str:
    """`XID 79 12:50:02, heat slowdown`. `seconds`: whether a time has them."""
    words = []
    for fault in gpu_faults:
        moment = ""
        if fault.t is not None and view.wall:
            at = datetime.datetime.fromtimestamp(view.wall - view.now + fault.t)
            moment = f" {at:%H:%M:%S}" if seconds else f" {at:%H:%M}"
        words.append(fault.words + moment)
    return ", ".join(words)


# --- histories ------------------------------------------------------------------------------------


class _Histories(NamedTuple):
    """The histories that each GPU has beside one another, the most useful first, with their titles
    and the cells of each. `values`: of each GPU in sight. `highest`: the largest of all."""

    columns: Sequence[DeviceColumn]
    cells: int
    titles: str
    values: Mapping[str, Sequence[Sequence[float | None]]]
    highest: Sequence[float]

    def of(self, view: View, gpu: str) -> list[Past]:
        """The histories of a GPU. Where a metric has no top, all GPUs have one scale."""
        return [
            (values, read(view, column, gpu).top or high)
            for values, column, high in zip(
                self.values[gpu], self.columns, self.highest, strict=True
            )
        ]


def _histories(
    view: View, gpus: Sequence[Device], listed: Sequence[Device], history: History, room: int
) -> _Histories:
    """As many histories as have `room` beside one another."""
    wanted = _measured(view, gpus)[:MAX_TRACES]
    gap = len(TRACE_GAP)
    count = min(len(wanted), (room + gap) // (MIN_TRACE + gap))
    cells = (room + gap) // count - gap if count > 0 else 0
    columns = wanted[: max(0, count)]
    values = {
        gpu.id: [_past(history, of_device(view, each, gpu.id), gpu.id, cells) for each in columns]
        for gpu in listed
    }
    highest = [
        max((value or 0.0 for of_gpu in values.values() for value in of_gpu[n]), default=0.0)
        for n in range(len(columns))
    ]
    span_s = time_of(view, cells).per_column_s * cells
    titles = TRACE_GAP.join(
        _trace_title(each, {read(view, each, gpu.id).top or high for gpu in listed}, cells, span_s)
        for each, high in zip(columns, highest, strict=True)
    )
    return _Histories(columns, cells, titles, values, highest)


def _measured(view: View, gpus: Sequence[Device]) -> list[DeviceColumn]:
    """The histories that these GPUs have, the most useful first. Those that fewer than half of the
    GPUs have come last."""
    ids = [gpu.id for gpu in gpus if gpu.id not in view.lost]
    wanted = [for_devices(view, column, ids) for column in HISTORIES]
    wanted.insert(LINK_AT, link_column(view, ids))
    counts = {
        column.title: sum(
            series_key(of_device(view, column, gpu).metric, gpu) in view.latest for gpu in ids
        )
        for column in wanted
    }
    known = [column for column in wanted if counts[column.title]]
    return sorted(known, key=lambda column: 2 * counts[column.title] < len(ids))


HISTORIES = (
    device_columns.SM,
    device_columns.HBM_BANDWIDTH,
    device_columns.POWER,
    device_columns.HBM,
    device_columns.TEMPERATURE,
)
LINK_AT = 2
"""What has a history, the most useful first; and the place of NVLink or PCIe among them."""


def _trace_title(column: DeviceColumn, tops: set[float], cells: int, span_s: float) -> str:
    """`SM 0-100 %, 90 s`: what a history shows, the tops of its scales, and its time; as much of it
    as fits above the history."""
    span, scale = f"{span_s:.0f} s", _scale(column, tops)
    name = column.lead or column.short_title
    forms = (
        f"{name} {scale}, {span}" if scale else "",
        f"{name}, {span}",
        name,
        column.short_title,
    )
    return fit(
        next(
            (form for form in forms if form and cell_width(form) <= cells),
            cut(column.short_title, cells),
        ),
        cells,
    )


def _scale(column: DeviceColumn, tops: set[float]) -> str:
    """`0-700 W`; `0-max` where each GPU has its own top."""
    if column.full == 1.0:
        return "0-100 %"
    if len(tops) != 1:
        return "0-max"
    (top,) = tops
    return f"0-{scale_top(column.metric, top)}" if top else ""


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
    pairs = zip(values, others, strict=True)
    return [ColumnReading(first, second, None, True).total for first, second in pairs]
