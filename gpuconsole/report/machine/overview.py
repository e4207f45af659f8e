"""The machine overview, shown while no workload runs: devices with their state, processes that use
the GPUs, and what to press."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuconsole.model import device_columns
from gpuconsole.model.machine import Device
from gpuconsole.model.scenario import Scenario, grouped
from gpuconsole.model.text import cell_width, plain
from gpuconsole.report.cells import (
    Row,
    Segment,
    beside,
    blank,
    fill,
    fit,
    inner_width,
    line,
    panel,
    row_width,
    shaded,
    spark,
    wrap,
)
from gpuconsole.report.machine.columns import GAP, fitting, named
from gpuconsole.report.machine.devices import History
from gpuconsole.report.machine.fleet import all_fleet_rows, paint_fleet
from gpuconsole.report.machine.gpus import (
    MAX_SPARK_ROWS,
    GpuChoice,
    GpuTable,
    gpu_table,
    order_in_words,
    same_name,
)
from gpuconsole.report.machine.headline import headline
from gpuconsole.report.machine.processes import ProcessFilter, arrange, process_lines
from gpuconsole.report.machine.tiles import Tile, drawn, host_tiles
from gpuconsole.report.page import Lines
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import GpuState, gpu_states, in_words

WIDE = 100
TALL = 28
"""From so many rows on, the panels have boxes."""
MAX_HOST_ROWS = 7
"""Rows that the history of the host's cores takes below the GPUs, where nothing else needs them."""
ROWS_FOR_ALL = 8
"""Up to this number of GPUs, each GPU has a line if the screen has the rows. With more GPUs, a map
stands above the table if not all lines fit."""
MIN_LINES = 3
MARK = "▌ "
MIN_HEIGHT_FOR_REST = 16
"""Rows with which the headline may take a second row."""
HOST_FIGURES = 58
"""Cells of the figures of the host, before the history of its cores."""
HOST_BELOW = (
    device_columns.CORES,
    device_columns.HOST_MEMORY,
    device_columns.LOAD,
    device_columns.SWAP,
)
MIN_PROCESSES = 4
MIN_HOST = 7
"""Rows that the processes, and the figures of a machine without a GPU, keep. Where they do not fit,
hints are left out."""


class Hint(NamedTuple):
    """A key with its label, or a command (then `label` is empty), and what it does."""

    key: str
    label: str
    text: str


class Overview(NamedTuple):
    """The rows, and the table of the GPUs (None without a GPU), which begins in row `top`."""

    rows: list[Row]
    table: GpuTable | None = None
    top: int = 0

    def gpu_at(self, y: int) -> str:
        """The GPU whose line is in row `y`, or an empty text."""
        if self.table is None:
            return ""
        n = (y - self.top - self.table.head) // self.table.each
        return self.table.ids[self.table.offset + n] if 0 <= n < self.table.shown else ""


def paint_overview(
    view: View,
    hints: Sequence[Hint],
    history: History,
    width: int,
    height: int,
    scenarios: Sequence[Scenario] = (),
    choice: GpuChoice = GpuChoice(),  # noqa: B008
    *,
    brief: bool = False,
) -> Overview:
    """Return `height` rows. The room that remains goes to the history of the devices and to the
    processes; without a GPU to the `scenarios`. `brief`: beside GPUs, the hints take one row."""
    boxed = width >= WIDE and height >= TALL
    gpus = [device for device in view.devices if device.is_gpu]
    if gpus:
        return _with_gpus(view, gpus, hints, history, width, height, choice, boxed, brief)
    frame = 2 if boxed else 1
    inner = inner_width(width, boxed)
    for fewer in (hints, [hint for hint in hints if hint.label], hints[:1]):
        keys = _hint_rows(fewer, inner)
        rows = [
            *_headline(view, gpus, {}, width, height),
            blank(width),
            *panel("what to press", [], keys, width, len(keys) + frame, boxed),
        ]
        if (room := height - len(rows)) >= MIN_HOST + frame:
            break
    examples = _example_rows(scenarios, inner)
    below = (
        len(examples) + frame
        if examples and len(examples) + MIN_HOST + 1 + 2 * frame <= room
        else 0
    )
    host = panel(
        "this machine (CPU)",
        [],
        _host_rows(view, history, inner, room - below - frame),
        width,
        room - below,
        boxed,
    )
    return Overview(
        fill(
            [
                *rows,
                *host,
                *panel("scenarios", [("press s", "dim")], examples, width, below, boxed),
            ],
            width,
            height,
        )
    )


class _Heights(NamedTuple):
    """Rows of the map of many GPUs, of the table of the GPUs and of the processes, with their
    frames; 0: not shown."""

    map: int
    table: int
    processes: int


def _heights(gpus: int, room: int, processes: int, strip: int, frame: int) -> _Heights:
    """The GPUs first, then the processes, then the histories. `processes`, `strip`: the rows that
    the processes and the map could use, with their heads."""
    wanted = processes + frame
    least = min(wanted, MIN_PROCESSES + frame)
    every = gpus + 1 + frame
    if gpus <= ROWS_FOR_ALL or every + 1 + least <= room:
        if room < every + least:
            return _Heights(0, room, 0)
        each = max(1, (room - wanted - frame - 2) // gpus)
        table = min(each * gpus + 2 + frame, room - least)
        table += max(0, min(MAX_HOST_ROWS, room - wanted - table))
        return _Heights(0, table, room - table)
    lines = frame + 1 + MIN_LINES
    below = least if room >= 2 * lines + least else 0
    above = min(strip + frame, room - below - lines, (room - below) // 2)
    above = above if above > frame + 1 else 0
    return _Heights(above, room - below - above, below)


def _with_gpus(
    view: View,
    gpus: Sequence[Device],
    hints: Sequence[Hint],
    history: History,
    width: int,
    height: int,
    choice: GpuChoice,
    boxed: bool,
    brief: bool,
) -> Overview:
    frame = 2 if boxed else 1
    inner = inner_width(width, boxed)
    states = gpu_states(view, gpus)
    processes, notes = _processes(view, inner)
    count = len(processes.head) + len(processes.keys) + len(notes)
    rows = _headline(view, gpus, states, width, height)
    needed = len(rows) + 1 + frame + len(gpus) + 2 + frame + count + frame
    commands = [
        line(inner, (hint.key, "code"), (f"   {hint.text}", "dim"))
        for hint in hints
        if not hint.label
    ]
    for title, texts in (("what to press", _hint_rows(hints, inner)), ("in a shell", commands)):
        if not brief and needed + len(texts) <= height:
            rows += [blank(width), *panel(title, [], texts, width, len(texts) + frame, boxed)]
            break
    else:
        rows += [_one_line(hints, width), *([blank(width)] if height >= TALL else [])]
    heights = _heights(len(gpus), height - len(rows), count, all_fleet_rows(view), frame)
    if heights.map:
        strip = paint_fleet(view, inner, heights.map - frame)
        rows += panel(same_name(view, gpus) or in_words(gpus), [], strip, width, heights.map, boxed)
    top = len(rows) + 1
    table, painted = _device_rows(
        view, gpus, states, history, inner, max(0, heights.table - frame), choice
    )
    rows += panel(
        _table_title(view, gpus, bool(heights.map)),
        _table_figures(view, table, choice),
        painted,
        width,
        heights.table,
        boxed,
    )
    rows += panel(
        "processes on the GPUs",
        [],
        _in_sight(processes, notes, inner, heights.processes - frame),
        width,
        heights.processes,
        boxed,
    )
    return Overview(fill(rows, width, height), table, top)


def _table_title(view: View, gpus: Sequence[Device], has_map: bool) -> str:
    name = "" if has_map else same_name(view, gpus)
    return f"devices: {name}" if name else "devices"


def _table_figures(view: View, table: GpuTable, choice: GpuChoice) -> list[Segment]:
    """What part of the table is in sight, and its order; otherwise the driver."""
    parts = [order_in_words(choice)] if order_in_words(choice) else []
    if table.shown < len(table.ids):
        parts.append(
            f"{table.offset + 1}-{table.offset + table.shown} of {len(table.ids)}, arrows scroll"
        )
    elif not parts and view.environment.driver:
        parts.append(f"driver {plain(view.environment.driver)}")
    return [("   ".join(parts), "dim")] if parts else []


def _one_line(hints: Sequence[Hint], width: int) -> Row:
    """The command for a job of the user's own. The keys stand at the foot of the screen."""
    command = next((hint for hint in hints if not hint.label), None)
    if command is None:
        return blank(width)
    begin: Row = [(MARK, "accent"), ("In a shell: ", "dim"), (command.key, "code")]
    text = f"   {command.text}"
    return line(
        width, *begin, (text if row_width(begin) + cell_width(text) <= width else "", "dim")
    )


def _headline(
    view: View, gpus: Sequence[Device], states: Mapping[str, GpuState], width: int, height: int
) -> list[Row]:
    """What the GPUs do, or why there is none, in at most two lines."""
    if gpus:
        rows = 2 if height >= MIN_HEIGHT_FOR_REST else 1
        texts = headline(view, gpus, states, width - cell_width(MARK), rows)
        return [line(width, (MARK, "accent"), *row) for row in texts]
    if view.devices:
        text = f"No GPU: {plain(view.no_gpu_reason)}." if view.no_gpu_reason else "No GPU."
        rest = "Runs use the CPU, at a small scale. No number is GPU data."
    else:
        text, rest = "Searching for devices.", plain(view.notes[-1]) if view.notes else ""
    if cell_width(text) + cell_width(rest) + 5 <= width:
        return [line(width, (MARK, "accent"), (text, "title"), (f"  {rest}", ""))]
    return [
        line(width, (MARK, "accent"), (text, "title")),
        *([line(width, (MARK, "accent"), rest)] if rest else []),
    ]


def _hint_rows(hints: Sequence[Hint], width: int) -> list[Row]:
    """The keys, and the commands for a shell beside or below them."""
    keys, commands = (
        [hint for hint in hints if hint.label],
        [hint for hint in hints if not hint.label],
    )
    if width < WIDE - 4:
        return [
            *_key_rows(keys, width),
            *(line(width, (hint.key, "code"), (f"   {hint.text}", "dim")) for hint in commands),
        ]
    half = width // 2 - 2
    left, right = _key_rows(keys, half), [line(half, ("In a shell:", "dim"))]
    column = max((cell_width(hint.key) for hint in commands), default=0)
    for hint in commands:
        if cell_width(hint.key) + cell_width(hint.text) + 5 <= half:
            right.append(
                line(half, ("  ", ""), (hint.key.ljust(column), "code"), (f"   {hint.text}", "dim"))
            )
        else:
            right += [
                line(half, ("  ", ""), (hint.key, "code")),
                line(half, (f"      {hint.text}", "dim")),
            ]
    height = max(len(left), len(right))
    gap = [line(width - 2 * half) for _ in range(height)]
    return beside(fill(left, half, height), gap, fill(right, half, height))


def _key_rows(keys: Sequence[Hint], width: int) -> list[Row]:
    column = max((cell_width(hint.key) + cell_width(hint.label) for hint in keys), default=0) + 3
    rows = []
    for hint in keys:
        first, *rest = wrap(hint.text, max(8, width - column))
        title = f" {hint.label}".ljust(column - cell_width(hint.key))
        rows.append(line(width, (hint.key, "key"), (title, "title"), first))
        rows += [line(width, (" " * column, ""), text) for text in rest]
    return rows


# --- devices --------------------------------------------------------------------------------------


def _device_rows(
    view: View,
    gpus: Sequence[Device],
    states: Mapping[str, GpuState],
    history: History,
    width: int,
    height: int,
    choice: GpuChoice,
) -> tuple[GpuTable, list[Row]]:
    """The table of the GPUs, then the host where a row is left."""
    host = next((device for device in view.devices if not device.is_gpu), None)
    room = (
        height - 1
        if host is not None and (height > len(gpus) + 1 or height > MIN_LINES + 2)
        else height
    )
    each = max(1, min(MAX_SPARK_ROWS, (room - 1) // len(gpus)))
    table = gpu_table(view, gpus, states, history, width, min(room, each * len(gpus) + 1), choice)
    if room == height or host is None:
        return table, fill(table.rows, width, height)
    return table, [
        *table.rows,
        *_host_below(
            view,
            host,
            history,
            max(6, *(cell_width(gpu.id) for gpu in gpus)),
            table.trace,
            width,
            height - len(table.rows),
        ),
    ]


def _host_below(
    view: View,
    host: Device,
    history: History,
    ids: int,
    trace: tuple[int, int],
    width: int,
    height: int,
) -> list[Row]:
    """The host, and where there is room the history of its cores below the histories of the GPUs.
    `trace`: the first cell of these and their cells."""
    cores = host_tiles(view)[0].traces
    traced = bool(cores) and height > 1
    used, cells = (
        trace
        if trace[1] and trace[0] >= HOST_FIGURES
        else (HOST_FIGURES, max(0, width - HOST_FIGURES))
    )
    *above, base = (
        shaded(spark(history(cores[0].key, cells), height - 1, cores[0].high)) if traced else [[]]
    )
    room = used if traced else width
    figures, name = (
        fitting(named(view, HOST_BELOW, host.id), room - ids),
        plain(facts.short_name(host.name)),
    )
    if fitting([name], room - ids - sum(len(GAP) + cell_width(text) for text in figures)):
        figures.insert(0, name)
    text = line(room, fit(host.id, ids), *(GAP + figure for figure in figures))
    return [
        *([blank(width)] if traced else []),
        *(line(width, " " * used, *texts) for texts in above),
        line(width, *text, *base),
    ]


def _host_rows(view: View, history: History, width: int, height: int) -> list[Row]:
    """What the host does, each series with its history. All histories are equally high; what
    remains are gaps between the tiles."""
    host = next((device for device in view.devices if not device.is_gpu), None)
    rows = [line(width, (plain(host.name) if host else "", "dim"))] if height >= 8 else []
    room = max(1, height - len(rows))
    traces = [(tile, n) for tile in host_tiles(view) for n in range(max(1, len(tile.traces)))][
        :room
    ]
    each, more = divmod(room, max(1, len(traces)))
    firsts = [place for place, (_, n) in enumerate(traces) if n == 0]
    # between all tiles or between none
    gaps = firsts[-more:] if more >= len(firsts) - 1 > 0 else []
    for place, (tile, n) in enumerate(traces):
        rows += [
            *([blank(width)] if place in gaps else []),
            *_host_trace(tile, n, history, width, each),
        ]
    return fill(rows, width, height)


def _example_rows(scenarios: Sequence[Scenario], width: int) -> list[Row]:
    """Each scenario with its title in two columns; where a title would be cut, only the first group
    has titles."""
    groups = grouped(scenarios)
    names = max((cell_width(scenario.name) for scenario in scenarios), default=0)
    each = (width - len(GAP)) // 2
    if any(names + cell_width(plain(scenario.title)) + 4 > each for scenario in scenarios):
        return _short_examples(groups, width)
    cells: list[Row] = []
    half = -(-sum(1 + len(members) for members in groups.values()) // 2)
    for group, members in groups.items():
        cells += [line(each)] * (len(cells) == half - 1)  # no heading at the foot of a column
        cells.append(line(each, (group, "heading")))
        cells += [
            line(
                each, f"  {fit(plain(scenario.name), names)}", (f"  {plain(scenario.title)}", "dim")
            )
            for scenario in members
        ]
    right = fill(cells[half:], each, max(half, len(cells) - half))
    return [
        line(width, *row)
        for row in beside(
            fill(cells[:half], each, len(right)), [line(len(GAP))] * len(right), right
        )
    ]


def _short_examples(groups: Mapping[str, Sequence[Scenario]], width: int) -> list[Row]:
    """The first group with titles, the names of the others."""
    column = max(map(cell_width, groups), default=0) + len(GAP)
    rows: list[Row] = []
    for n, (group, members) in enumerate(groups.items()):
        names = max(cell_width(scenario.name) for scenario in members)
        if n:
            texts = wrap(", ".join(plain(scenario.name) for scenario in members), width - column)
            entries: list[Row] = [[(text, "")] for text in texts]
        else:
            entries = [
                [(fit(plain(scenario.name), names), ""), (f"  {plain(scenario.title)}", "dim")]
                for scenario in members
            ]
        rows += [
            line(width, (fit("" if at else group, column), "heading"), *entry)
            for at, entry in enumerate(entries)
        ]
    return rows


def _host_trace(tile: Tile, n: int, history: History, width: int, height: int) -> list[Row]:
    """A series of a tile with its figure, and its history in the rest of the row. From three rows
    on, the first row is blank."""
    head = min(42, width * 2 // 3) - 2
    columns = max(0, width - head - 2)
    traces = tile.traces[n : n + 1]
    values = {trace.key: history(trace.key, columns) for trace in traces}
    figure = next((trace.figure for trace in traces if trace.figure), tile.figure)
    of_series = tile._replace(
        title=tile.title if n == 0 else "", figure=figure, traces=traces, short=""
    )
    rows = drawn(of_series, values, columns, head, width, height - (height >= 3))
    return [*[blank(width)] * (height - len(rows)), *rows]


# --- processes ------------------------------------------------------------------------------------


def _processes(view: View, width: int) -> tuple[Lines, list[Row]]:
    """The processes of each GPU, those with most memory first, below the heads of their columns;
    and notes about GPUs that do not report theirs."""
    choice = ProcessFilter(sort="device")  # who uses which GPU
    entries = arrange(view.processes, choice)
    lines = process_lines(view, entries, choice, width, view.wall or None)
    return lines, lines.foot(None) if lines.foot is not None else []


def _in_sight(lines: Lines, notes: list[Row], width: int, height: int) -> list[Row]:
    """`height` rows, the notes last. Only rows in sight are painted. Where rows are left out, a row
    counts them."""
    room = height - len(notes)
    count = len(lines.head) + len(lines.keys)
    cut = count > room >= 2
    shown = (room - 1 if cut else max(0, room)) - len(lines.head)
    rows = [*lines.head, *(lines.row(n, False) for n in range(min(len(lines.keys), shown)))]
    if cut:
        rows = [
            *rows[: room - 1],
            line(width, (f"{count - room + 1} more: press p", "dim")),
        ]
    return fill([*rows, *notes], width, max(0, height))
