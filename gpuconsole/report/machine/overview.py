"""The machine overview, shown while no workload runs: devices with their state, processes that use the GPUs, and what to press."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuconsole.model import device_columns
from gpuconsole.model.device_columns import DeviceColumn
from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import series_key
from gpuconsole.model.scenario import Scenario, grouped
from gpuconsole.model.text import cell_width, plain
from gpuconsole.report.cells import Row, Segment, beside, blank, fill, fit, inner_width, line, panel, shaded, spark, wrap
from gpuconsole.report.machine.columns import GAP, activity_column, cell, figure, for_devices, heading, link_column, named, read, shown
from gpuconsole.report.machine.devices import History
from gpuconsole.report.machine.processes import Choice, arrange, process_lines
from gpuconsole.report.machine.tiles import Tile, host_tiles
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import Fault, GpuState, faults, gpu_states, in_words, unreadable, whole_gpus

WIDE = 100
TALL = 28
"""From so many rows on, the panels have boxes."""
MOST_SPARK_ROWS = 40
MOST_HOST_ROWS = 7
"""Rows that the history of the host's cores takes below the GPUs, where nothing else needs them."""
COLUMNS = (device_columns.SM, device_columns.HBM, device_columns.HBM_BANDWIDTH, device_columns.POWER, device_columns.TEMPERATURE)
SM_OR_UTILIZATION = device_columns.SM._replace(heading="SM or util", width=10)
"""The heading of the first column if only some GPUs report active SMs."""
STATE = 13
"""Cells of the column that says what a GPU does."""
TRACE_TITLE = 8
"""Cells of the name of a history where the histories of a GPU stand below one another."""
TRACE_GAP = "  "
LEAST_TRACE = 10
"""Cells of a history. A GPU has as many histories as there is room for, side by side below their names."""
LEAST_REASON = 24
"""Cells for the reason why a state is not known. With fewer, the reason stands in place of the figures."""
LEAST_ROWS_FOR_GAP = 3
LEAST_PROCESSES = 4
LEAST_HOST = 7
"""Rows that the processes, and the figures of a machine without a GPU, keep. Where they do not fit, hints are left out."""
STYLES = {"free": "good", "lost": "alert", "silent": "alert", "n/a": "dim"}


class Hint(NamedTuple):
    """A key with its label, or a command (then `label` is empty), and what it does."""

    key: str
    label: str
    text: str


def paint_overview(
    view: View, hints: Sequence[Hint], history: History, width: int, height: int, scenarios: Sequence[Scenario] = ()
) -> list[Row]:
    """`height` rows. The room that remains goes to the history of the devices and to the processes; without a GPU to the `scenarios`."""
    boxed = width >= WIDE and height >= TALL
    frame = 2 if boxed else 1
    inner = inner_width(width, boxed)
    gpus = [device for device in view.devices if device.is_gpu]
    states = gpu_states(view, gpus)
    least = len(gpus) + 2 + LEAST_PROCESSES + 2 * frame if gpus else LEAST_HOST + frame
    for fewer in (hints, [hint for hint in hints if hint.label], hints[:1]):
        keys = _hint_rows(fewer, inner)
        rows = [*_headline(view, gpus, states, width), blank(width), *panel("what to press", [], keys, width, len(keys) + frame, boxed)]
        if (room := height - len(rows)) >= least:
            break
    if not gpus:
        examples = _example_rows(scenarios, inner)
        below = len(examples) + frame if examples and len(examples) + LEAST_HOST + 1 + 2 * frame <= room else 0
        host = panel("this machine (CPU)", [], _host_rows(view, history, inner, room - below - frame), width, room - below, boxed)
        return fill([*rows, *host, *panel("scenarios", [("press s", "dim")], examples, width, below, boxed)], width, height)
    wanted = max(LEAST_PROCESSES, len(view.processes) + 2) + frame if view.processes else 2 + frame
    each = max(1, min(MOST_SPARK_ROWS, (room - wanted - frame - 2) // len(gpus)))
    upper = min(each * len(gpus) + 2 + frame, room - min(wanted, LEAST_PROCESSES + frame))
    upper += max(0, min(MOST_HOST_ROWS, room - wanted - upper))
    rows += panel("devices", [], _device_rows(view, gpus, states, history, inner, upper - frame), width, upper, boxed)
    processes = _process_rows(view, inner, room - upper - frame)
    return fill([*rows, *panel("processes on the GPUs", [], processes, width, room - upper, boxed)], width, height)


def _headline(view: View, gpus: Sequence[Device], states: Mapping[str, GpuState], width: int) -> list[Row]:
    """How many GPUs are free, or why there is none, in one line."""
    if gpus:
        text = _gpus_in_words(view, gpus, states) + "."
        rest = "Nothing runs under gpuconsole yet."
    elif view.devices:
        text = f"No GPU: {plain(view.no_gpu_reason)}." if view.no_gpu_reason else "No GPU."
        rest = "Runs use the CPU, at a small scale. No number is GPU data."
    else:
        text, rest = "Searching for devices.", ""
    if cell_width(text) + cell_width(rest) + 5 <= width:
        return [line(width, ("▌ ", "accent"), (text, "title"), (f"  {rest}", ""))]
    return [line(width, ("▌ ", "accent"), (text, "title")), *([line(width, ("▌ ", "accent"), rest)] if rest else [])]


def _gpus_in_words(view: View, gpus: Sequence[Device], states: Mapping[str, GpuState]) -> str:
    """How many GPUs are in which state, and how many have a fault; of a single one, what it does."""
    whole = whole_gpus(gpus)
    faulty = sum(states[gpu.id].kind != "lost" and any(fault.is_new for fault in faults(view, gpu.id)) for gpu in whole)
    users = len({process.pid for process in view.processes})
    if len(gpus) == 1:
        return f"{plain(facts.short_name(gpus[0].name))}: {plain(states[gpus[0].id].text)}" + (", with a fault" if faulty else "")
    counts = Counter(states[gpu.id].kind for gpu in whole)
    parts = [f"{counts[kind]} {kind}" for kind in ("free", "busy", "lost", "silent", "n/a") if counts[kind]]
    parts += [f"{faulty} with a fault"] if faulty else []
    return f"{in_words(gpus)}: {', '.join(parts)}" + (f"; {users} {'process' if users == 1 else 'processes'}" if users else "")


def _hint_rows(hints: Sequence[Hint], width: int) -> list[Row]:
    """The keys, and the commands for a shell beside or below them."""
    keys, commands = [hint for hint in hints if hint.label], [hint for hint in hints if not hint.label]
    if width < WIDE - 4:
        return [*_key_rows(keys, width), *(line(width, (hint.key, "code"), (f"   {hint.text}", "dim")) for hint in commands)]
    half = width // 2 - 2
    left, right = _key_rows(keys, half), [line(half, ("In a shell:", "dim"))]
    column = max((cell_width(hint.key) for hint in commands), default=0)
    for hint in commands:
        if cell_width(hint.key) + cell_width(hint.text) + 5 <= half:
            right.append(line(half, ("  ", ""), (hint.key.ljust(column), "code"), (f"   {hint.text}", "dim")))
        else:
            right += [line(half, ("  ", ""), (hint.key, "code")), line(half, (f"      {hint.text}", "dim"))]
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


# --- devices ------------------------------------------------------------------------------------------------


def _device_rows(
    view: View, gpus: Sequence[Device], states: Mapping[str, GpuState], history: History, width: int, height: int
) -> list[Row]:
    """A head, then each GPU with its figures and its histories, then the host."""
    host = next((device for device in view.devices if not device.is_gpu), None)
    room = height - 1 - (1 if host else 0)
    listed = gpus if len(gpus) <= room else gpus[: max(0, room - 1)]
    each = min(MOST_SPARK_ROWS, max(1, room // max(1, len(listed))))
    ids = max(6, *(cell_width(gpu.id) for gpu in gpus))
    known = [gpu for gpu in gpus if not unreadable(view, gpu.id)] or gpus  # a GPU without a handle has no name
    names = min(24, max(cell_width(facts.short_name(gpu.name)) for gpu in known)) if width >= 80 else 0
    columns = [for_devices(view, column, [gpu.id for gpu in gpus]) for column in shown(COLUMNS, width)]
    readings = {gpu.id: activity_column(view, [gpu.id]) for gpu in gpus}
    if len({column.metric for gpu, column in readings.items() if series_key(column.metric, gpu) in view.latest}) > 1:
        columns[0] = SM_OR_UTILIZATION
    wrong = {gpu.id: faults(view, gpu.id) for gpu in listed}
    heads = [fit("device", ids), *([fit("", names)] if names else []), fit("state", STATE), *map(heading, columns)]
    used = cell_width("  ".join(heads) + GAP)
    remarks = max((len(_fault_words(view, found)) for found in wrong.values()), default=0)
    remarks = remarks if used + remarks <= width else 0
    if remarks:  # beside the histories; where there is no room, in place of the state
        used += remarks + len(TRACE_GAP)
        heads[-1] += GAP + fit("faults", remarks - 1)
    traces, cells, stacked = _arrangement(view, gpus, max(0, width - used), each)
    titles = [fit(column.short_title, TRACE_TITLE if stacked else cells) for column in traces]
    rows = [line(width, ("  ".join(heads) + GAP + ("" if stacked else TRACE_GAP.join(titles)), "dim"))]
    past = {gpu.id: [_past(history, column, gpu.id, cells) for column in (readings[gpu.id], *traces[1:])] for gpu in listed}
    most = [max((value or 0.0 for of_gpu in past.values() for value in of_gpu[n]), default=0.0) for n in range(len(traces))]
    for gpu in listed:
        start: Row = [(fit(gpu.id, ids) + "  ", "accent" if gpu.id == view.device else "")]
        start += [(fit(plain(facts.short_name(gpu.name)) if gpu in known else "", names) + "  ", "dim")] if names else []
        state, found = states[gpu.id], wrong[gpu.id]
        if instead := _instead_of_figures(view, gpu.id, state, found, width - used + remarks):
            rows += fill([line(width, *start, instead)], width, each)
            continue
        tops = [read(view, column, gpu.id).top or high for column, high in zip(traces, most, strict=True)]  # one scale for all GPUs
        busy = readings[gpu.id]
        figures = "  ".join(
            [_activity(view, busy, columns[0], gpu.id), *(cell(column, read(view, column, gpu.id)) for column in columns[1:])]
        )
        new = [fault for fault in found if fault.is_new]
        doing: Segment = (state.words, STYLES.get(state.kind, ""))
        if new and not remarks:
            doing = (_fault_words(view, new[:1], seconds=False), "alert")
        start += [(fit(doing[0], STATE), doing[1]), (f"  {figures}   ", "")]
        why = _remark(view, gpu.id, state, busy)
        if why and not found:
            rows += fill([line(width, *start, (plain(why), "dim"))], width, each)
            continue
        if remarks:
            start += [(fit(_fault_words(view, found), remarks), "alert" if new else "dim"), (TRACE_GAP, "")]
        if why:
            rows += fill([line(width, *line(used, *start), (plain(why), "dim"))], width, each)
            continue
        histories = list(zip(past[gpu.id], tops, strict=True))
        traced = _stacked(histories, titles, each) if stacked else _side_by_side(histories, each)
        at = 0 if each >= LEAST_ROWS_FOR_GAP else len(traced) - 1  # a low history has the name on its base line
        begins: list[Row] = [line(used, *start) if n == at else [(" " * used, "")] for n in range(len(traced))]
        rows += fill([line(width, *begin, *row) for begin, row in zip(begins, traced, strict=True)], width, each)
    if left_out := len(gpus) - len(listed):
        rows.append(line(width, (f"{left_out} more GPUs: press i", "dim")))
    if host is not None:
        rows += _host_below(view, host, history, ids, cells, used, width, height - len(rows))
    return fill(rows, width, height)


def _instead_of_figures(view: View, gpu: str, state: GpuState, found: Sequence[Fault], room: int) -> Segment | None:
    """What stands in place of the figures of a GPU that has none, or whose state has a reason that does not fit into the `room` beside them."""
    if state.kind == "lost" or unreadable(view, gpu):
        errors = "".join(f"; {_fault_words(view, [fault])}" for fault in found if fault.t is not None)
        return plain(state.text) + errors, "alert"
    return (plain(state.text), "dim") if state.kind == "n/a" and room < LEAST_REASON else None


def _fault_words(view: View, found: Sequence[Fault], seconds: bool = True) -> str:
    """`XID 79 12:50:02, heat slowdown`. `seconds`: whether a time has them."""
    words = []
    for fault in found:
        moment = ""
        if fault.t is not None and view.wall:
            at = datetime.datetime.fromtimestamp(view.wall - view.now + fault.t)
            moment = f" {at:%H:%M:%S}" if seconds else f" {at:%H:%M}"
        words.append(fault.words + moment)
    return ", ".join(words)


def _activity(view: View, busy: DeviceColumn, column: DeviceColumn, gpu: str) -> str:
    """How busy a GPU is, for the first column. Where the column has two measures, the utilization of nvidia-smi has its name."""
    text = figure(busy, read(view, busy, gpu), alone=True)
    named = column is SM_OR_UTILIZATION and busy is device_columns.UTILIZATION
    return f"{f'util {text.strip()}' if named else text:{column.align}{column.width}}"


def _remark(view: View, gpu: str, state: GpuState, busy: DeviceColumn) -> str:
    """What stands in place of the histories of a GPU: why its state is not known, or why it is not known how busy it is."""
    if state.kind == "n/a":
        return state.reason
    why = view.unavailable.get(series_key(busy.metric, gpu))
    if not why or read(view, busy, gpu).value is not None:
        return ""
    return f"{busy.short_title} n/a: {why}"


def _arrangement(view: View, gpus: Sequence[Device], room: int, each: int) -> tuple[list[DeviceColumn], int, bool]:
    """The histories of each GPU, the most useful first; the cells of each; and whether they stand below one another in the `each` rows of a GPU,
    which shows a longer time. Side by side, only those that have room."""
    ids = [gpu.id for gpu in gpus]
    wanted = [*(for_devices(view, column, ids) for column in (device_columns.SM, device_columns.HBM_BANDWIDTH)), link_column(view, ids)]
    if each >= LEAST_ROWS_FOR_GAP * len(wanted):
        return wanted, max(0, room - TRACE_TITLE), True
    gap = len(TRACE_GAP)
    count = max(1, min(len(wanted), (room + gap) // (LEAST_TRACE + gap)))
    return wanted[:count], max(0, (room + gap) // count - gap), False


Past = tuple[Sequence[float | None], float | None]
"""A history, and the top of its scale."""


def _side_by_side(histories: Sequence[Past], height: int) -> list[Row]:
    """The histories of a GPU beside one another. From three rows on, the last row is blank."""
    rows = height - (height >= LEAST_ROWS_FOR_GAP)
    painted = [shaded(spark(values, rows, top, apart=True)) for values, top in histories]
    gaps: list[Row] = [[], *([[(TRACE_GAP, "")]] * (len(painted) - 1))]
    return [[part for gap, texts in zip(gaps, painted, strict=True) for part in (*gap, *texts[y])] for y in range(rows)]


def _stacked(histories: Sequence[Past], titles: Sequence[str], height: int) -> list[Row]:
    """The histories of a GPU below one another, each after its title and with a blank row below it."""
    rows: list[Row] = []
    for title, (values, top) in zip(titles, histories, strict=True):
        for y, texts in enumerate(shaded(spark(values, height // len(histories) - 1, top, apart=True))):
            rows.append([(" " * len(title) if y else title, "dim"), *texts])
        rows.append([])
    return rows


def _past(history: History, column: DeviceColumn, gpu: str, cells: int) -> list[float | None]:
    """The history of a column; of a link the sum of both directions."""
    values = history(series_key(column.metric, gpu), cells)
    if not column.ways:
        return values
    others = history(series_key(column.beside, gpu), cells)
    return [None if first is None or second is None else first + second for first, second in zip(values, others, strict=True)]


def _host_below(view: View, host: Device, history: History, ids: int, cells: int, used: int, width: int, height: int) -> list[Row]:
    """The host, and where there is room the history of its cores below the histories of the GPUs."""
    cores = host_tiles(view)[0].traces
    traced = bool(cores) and height > 1
    *above, base = shaded(spark(history(cores[0].key, cells), height - 1, cores[0].high)) if traced else [[]]
    name = [plain(facts.short_name(host.name))] if (used if traced else width) >= WIDE else []
    figures = GAP.join([*name, *named(view, (device_columns.CORES, device_columns.HOST_MEMORY), host.id)])
    text = line(used if traced else width, fit(host.id, ids), f"  {figures}")
    return [*([blank(width)] if traced else []), *(line(width, " " * used, *texts) for texts in above), line(width, *text, *base)]


def _host_rows(view: View, history: History, width: int, height: int) -> list[Row]:
    """What the host does, each series with its history. All histories are equally high; what remains are gaps between the tiles."""
    host = next((device for device in view.devices if not device.is_gpu), None)
    rows = [line(width, (plain(host.name) if host else "", "dim"))] if height >= 8 else []
    room = max(1, height - len(rows))
    traces = [(tile, n) for tile in host_tiles(view) for n in range(max(1, len(tile.traces)))][:room]
    each, more = divmod(room, max(1, len(traces)))
    firsts = [place for place, (_, n) in enumerate(traces) if n == 0]
    gaps = firsts[-more:] if more >= len(firsts) - 1 > 0 else []  # between all tiles or between none
    for place, (tile, n) in enumerate(traces):
        rows += [*([blank(width)] if place in gaps else []), *_host_trace(tile, n, history, width, each)]
    return fill(rows, width, height)


def _example_rows(scenarios: Sequence[Scenario], width: int) -> list[Row]:
    """Each scenario with its title in two columns; where a title would be cut, only the first group has titles."""
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
        cells += [line(each, f"  {fit(plain(scenario.name), names)}", (f"  {plain(scenario.title)}", "dim")) for scenario in members]
    right = fill(cells[half:], each, max(half, len(cells) - half))
    return [line(width, *row) for row in beside(fill(cells[:half], each, len(right)), [line(len(GAP))] * len(right), right)]


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
            entries = [[(fit(plain(scenario.name), names), ""), (f"  {plain(scenario.title)}", "dim")] for scenario in members]
        rows += [line(width, (fit("" if at else group, column), "heading"), *entry) for at, entry in enumerate(entries)]
    return rows


def _host_trace(tile: Tile, n: int, history: History, width: int, height: int) -> list[Row]:
    """A series with its figure, and its history in the rest of the row. From three rows on, the first row is blank."""
    column = min(42, width * 2 // 3)
    title = (fit(tile.title if n == 0 else "", 18), "dim")
    if not tile.traces:
        rows = [line(width, title, (f"{fit(tile.figure.strip(), column - 20, '>')}  ", "dim"), (plain(tile.reason), "dim"))]
    else:
        trace = tile.traces[n]
        figure = trace.figure or tile.figure
        values = history(trace.key, max(0, width - column))
        *above, base = shaded(spark(values, height - 1 if height >= 3 else height, trace.high, apart=True))
        rows = [line(width, (" " * column, ""), *texts) for texts in above]
        rows.append(line(width, title, fit(figure.strip(), column - 20, ">"), "  ", *base))
    return [*[blank(width)] * (height - len(rows)), *rows]


# --- processes ----------------------------------------------------------------------------------------------


def _process_rows(view: View, width: int, height: int) -> list[Row]:
    """The processes that use most memory."""
    if height <= 0:
        return []
    entries = arrange(view.processes, Choice())
    lines = process_lines(view, entries, Choice(), width, view.wall or None)
    rows = [*lines.head, *(lines.row(n, False) for n in range(len(lines.keys)))]
    foot = lines.foot(None) if lines.foot is not None else []
    room = height - len(foot)
    if len(rows) > room >= 2:
        rows = [*rows[: room - 1], line(width, (f"{len(rows) - room + 1} more: press p", "dim"))]
    return fill([*rows, *foot], width, height)
