"""The history of the device: a sparkline for each of eight metrics, each with its figure."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.text import cell_width, cut
from gpuconsole.report.cells import Row, Segment, fill, fit, inner_width, line, panel, spark
from gpuconsole.report.machine.tiles import Tile, Trace, tiles
from gpuconsole.report.screen.chart import HOLD_S, History, Window, hold_s, window
from gpuconsole.session import facts
from gpuconsole.session.api import View

FIGURE = 19
"""Cells of the figures before the sparklines."""
SECONDS_PER_COLUMN = 2.0
"""The widest column: the sparklines show the present, the chart of the throughput shows the whole run."""
USUAL_ROWS, MOST_ROWS = 3, 6
FLAT = 1 / 8
"""A line whose values differ by less than a level of a sparkline in one row is flat. A flat line takes one row."""


def paint_devices(view: View, history: History, width: int, height: int, *, all_eight: bool, boxed: bool) -> list[Row]:
    """At least one row for each metric. The remaining rows go to the lines that move."""
    if height <= 0:
        return []
    inner, room = inner_width(width, boxed), height - (2 if boxed else 0)
    shown = tiles(view, all_eight)
    label = max(cell_width(tile.title) for tile in shown) + 1
    columns = max(1, inner - label - FIGURE - 2)
    time = window(0.0, view.now, columns, SECONDS_PER_COLUMN)
    hold = hold_s(view)
    values = {
        trace.key: time.values(trace.key, history, hold if trace.key.startswith("workload.") else HOLD_S)
        for tile in shown
        for trace in tile.traces
    }
    heights = _heights([_moves(tile, values) for tile in shown], room)
    rows: list[Row] = []
    for tile, (gap, own) in zip(shown, heights, strict=True):
        rows += fill([], inner, gap) + _tile(tile, values, time, label, inner, own)
    if not boxed:
        return fill(rows, width, height)
    return panel(_title(view, inner), _figures(view, width), rows, width, height, True)


def _title(view: View, width: int) -> str:
    device = facts.device(view)
    if device.is_gpu:
        return f"{device.id} {facts.short_name(device.name)}"
    why = view.no_gpu_reason
    if not why:
        return "CPU"
    wordings = (f"CPU (no GPU: {why})", f"CPU (no GPU: {why.partition(':')[0]})")
    return next((words for words in wordings if cell_width(words) <= width - 2), "CPU (no GPU)")


def _figures(view: View, width: int) -> list[Segment]:
    device = facts.device(view)
    if not device.is_gpu:
        return []

    def value(metric: str) -> float | None:
        return facts.latest(view, metric, device.id)

    if device.id in view.lost:
        return [(f"lost: {view.lost[device.id]}", "alert")]
    if silent := facts.silent_s(view, device.id):
        return [(f"last reading {silent:.0f} s ago", "alert")]
    words = []
    power, limit, warmth = value("gpu.power_w"), value("gpu.power_limit_w"), value("gpu.temperature_c")
    if power is not None:
        words.append(f"{power:3.0f}/{limit:.0f} W" if limit else f"{power:3.0f} W")
    if warmth is not None:
        words.append(f"{warmth:2.0f} °C")
    if (clock := value("gpu.sm_clock_hz")) is not None:
        words.append(units.si(clock, "Hz").strip())
    if capped := value("gpu.power_cap_time_ratio"):
        words.append(f"power cap {units.percent(capped)} of time")
    while words and cell_width("   ".join(words)) > width - 24:
        words.pop()
    return [("   ".join(words), "")] if words else []


def _moves(tile: Tile, values: dict[str, list[float | None]]) -> bool:
    """Whether a line of the tile is not flat."""
    return any(_range(trace, values[trace.key]) > FLAT for trace in tile.traces)


def _range(trace: Trace, values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    top = trace.high or max(known, default=0.0)
    return (max(known) - min(known)) / top if known and top > 0 else 0.0


def _heights(moving: list[bool], room: int) -> list[tuple[int, int]]:
    """For each metric: blank rows above it, and rows. One row each; more for the lines that move; then gaps; then more again."""
    rows, gaps = [1] * min(len(moving), room) + [0] * max(0, len(moving) - room), [0] * len(moving)
    left = room - sum(rows)
    for counts, among, most in ((rows, True, USUAL_ROWS), (gaps, None, 1), (rows, True, MOST_ROWS), (rows, False, room)):
        while left > 0 and (
            free := [n for n, moves in enumerate(moving) if among in (None, moves) and counts[n] < most and (n or counts is rows)]
        ):
            for n in free[:left]:
                counts[n] += 1
            left -= min(left, len(free))
    return list(zip(gaps, rows, strict=True))


def _tile(tile: Tile, values: dict[str, list[float | None]], time: Window, label: int, width: int, height: int) -> list[Row]:
    """Title and figure in the last row, on the base line, the sparklines beside them."""
    if height <= 0:
        return []
    head = label + FIGURE
    room = head - cell_width(tile.title) - 1
    figure = tile.figure if cell_width(tile.figure.strip()) <= room else tile.short or tile.figure
    style = "dim" if tile.figure.strip() == units.NA else "title"
    title: Row = [(tile.title, ""), (" ", "")]
    whole: Row = [(fit(figure.strip(), room, ">"), style), ("  ", "")]
    if tile.reason or not tile.traces:
        return [*fill([], width, height - 1), line(width, *title, *whole, (tile.reason, "dim"))]
    if height < len(tile.traces):
        return [line(width, *title, *whole, *_side_by_side(tile.traces, values, time.columns))]
    each, more = divmod(height, len(tile.traces))
    rows: list[Row] = []
    for n, trace in enumerate(tile.traces):
        *above, base = spark(values[trace.key], each + (n < more), trace.high)
        rows += [line(width, (" " * (head + 2), ""), (text, "trace")) for text in above]
        begin = title if n == len(tile.traces) - 1 else [(" " * (head - room), "")]
        own: Row = [(fit(trace.figure, room, ">"), style), ("  ", "")] if trace.figure else whole
        rows.append(line(width, *begin, *own, (base, "trace")))
    return rows


def _side_by_side(traces: tuple[Trace, ...], values: dict[str, list[float | None]], columns: int) -> Row:
    """The newest columns of each trace, after its label."""
    row: Row = []
    part = columns // len(traces) - 1
    for trace in traces:
        label = cut(f"{trace.label} ", part)
        shown = values[trace.key]
        filled = next((n for n in range(len(shown), 0, -1) if shown[n - 1] is not None), 0)
        start = max(0, filled - (part - cell_width(label)))
        texts = spark(shown[start:filled], 1, trace.high)
        row += [(" ", "")] * bool(row) + line(part, (label, "dim"), (texts[0], "trace"))
    return row
