"""The live tiles: eight for a GPU, and their counterparts for a CPU; and the zone that draws each
with its history as a sparkline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuconsole.model import device_columns, units
from gpuconsole.model.device_columns import DeviceColumn
from gpuconsole.model.figures import FIGURES
from gpuconsole.model.metrics import CATALOGUE, series_key
from gpuconsole.model.text import cell_width, cut
from gpuconsole.report.cells import Row, Segment, fill, fit, inner_width, line, panel, shaded, spark
from gpuconsole.report.machine.columns import (
    GAP,
    ColumnReading,
    figure,
    fitting,
    for_devices,
    measured,
    read,
    scale_top,
    trouble,
)
from gpuconsole.report.screen.chart import (
    HOLD_S,
    SPARK_COLUMN_S,
    History,
    hold_s,
    window,
)
from gpuconsole.session import facts
from gpuconsole.session.api import View

# --- the content ----------------------------------------------------------------------------------


class TileTrace(NamedTuple):
    """A series to draw. `high` is the top of its scale; None: the maximum of the series.

    Where a tile has several series: `figure` is the figure of this series in a row of its own,
    `label` names it where all share a row.
    """

    key: str
    label: str = ""
    high: float | None = None
    figure: str = ""


class Tile(NamedTuple):
    """`figure` is shown if it fits next to the title, otherwise `short`. `reason`: why there is no
    value."""

    title: str
    figure: str
    traces: tuple[TileTrace, ...]
    short: str = ""
    reason: str = ""


GPU_TILES = (
    device_columns.SM,
    device_columns.TENSOR,
    device_columns.HBM,
    device_columns.HBM_BANDWIDTH,
    device_columns.PCIE,
    device_columns.NVLINK,
)
HOST_TILES = (
    device_columns.CORES,
    device_columns.RUN_QUEUE_DELAY,
    device_columns.HOST_MEMORY,
    device_columns.DISK,
    device_columns.NET,
)
FIRST = (0, 2, 6, 7)
"""The four most important tiles, for a screen without room for eight."""


def tiles(view: View, all_eight: bool) -> list[Tile]:
    """The tiles of the view's device."""
    serves = view.run is not None and view.run.serves
    if facts.server_is_elsewhere(view):
        return [_requests(view), _throughput(view), _latency(view)]
    if facts.device(view).is_gpu:
        eight = [
            _column_tile(view, for_devices(view, column, (view.device,))) for column in GPU_TILES
        ]
    else:
        eight = host_tiles(view)
        eight.insert(3, _requests(view) if serves else _flops(view))
    eight += [_throughput(view), _latency(view) if serves else _step(view)]
    return eight if all_eight else [eight[n] for n in FIRST]


def host_tiles(view: View) -> list[Tile]:
    """What the host does, without a workload."""
    return [_column_tile(view, column) for column in HOST_TILES]


def _column_tile(view: View, column: DeviceColumn) -> Tile:
    """The tile of a column: two directions of traffic, a rate if it is known, otherwise the
    value."""
    reading = read(view, column, facts.device_of(view, column.metric))
    if column.ways:
        return _traffic(view, column, reading)
    if column.beside and (reading.beside is not None or reading.value is None):
        return _rate(view, column, reading)
    of_memory = CATALOGUE[column.metric].unit == "bytes"
    short = units.used_of(reading.value, reading.top, places=0).strip() if of_memory else ""
    text = figure(column, reading, alone=bool(column.beside))
    return _tile(
        view,
        column.metric,
        column.title,
        text,
        (_trace(view, column.metric, high=reading.top),),
        short,
    )


def _rate(view: View, column: DeviceColumn, reading: ColumnReading) -> Tile:
    """A rate with its share. The scale ends at the datasheet peak where the peak is known."""
    short = units.si(reading.beside, "B/s")
    text = figure(column, reading) if reading.value is not None else short
    trace = _trace(view, column.beside, high=facts.device(view).peaks.memory_bytes_per_s)
    return _tile(view, column.beside, column.title, text, (trace,), short)


def _traffic(view: View, column: DeviceColumn, reading: ColumnReading) -> Tile:
    """Two directions of traffic, both in the unit of the larger rate. Without GPM the driver looks
    at the bus for 20 ms: bursts between are not seen."""
    assert column.ways is not None
    first, second, unit = units.rates(reading.value, reading.beside, "B/s")
    directions = zip((column.metric, column.beside), column.ways, (first, second), strict=True)
    traces = tuple(
        _trace(view, metric, way, figure=f"{way} {rate} {unit}") for metric, way, rate in directions
    )
    reported = (
        column.beside if reading.value is None and reading.beside is not None else column.metric
    )
    sampled = view.substitutes.get(
        series_key(reported, facts.device_of(view, reported))
    ) == "nvml" and not reported.startswith("host.")
    return _tile(
        view,
        reported,
        f"{column.title}, 20 ms" if sampled else column.title,
        figure(column, reading),
        traces,
    )


def _tile(
    view: View, metric: str, title: str, text: str, traces: tuple[TileTrace, ...], short: str = ""
) -> Tile:
    """A tile with its figure, or with the reason why there is no figure."""
    old = not metric.startswith("workload.") and facts.silent_s(view, facts.device_of(view, metric))
    if old or facts.latest(view, metric) is None:
        return Tile(title, units.NA, (), "", facts.reason(view, metric))
    return Tile(title, text, traces, short)


def _trace(
    view: View, metric: str, label: str = "", high: float | None = None, figure: str = ""
) -> TileTrace:
    return TileTrace(series_key(metric, facts.device_of(view, metric)), label, high, figure)


def _flops(view: View) -> Tile:
    """The rate of now. The MFU of the run, of all steady steps, stands above the chart: two would
    differ."""
    short = units.si(facts.latest(view, "workload.flops_per_s"), "FLOP/s")
    return _tile(
        view, "workload.flops_per_s", "model", short, (_trace(view, "workload.flops_per_s"),), short
    )


def _throughput(view: View) -> Tile:
    metric, unit = facts.throughput_metric(view)
    return _tile(
        view, metric, unit, units.rate(facts.latest(view, metric)), (_trace(view, metric),)
    )


def _requests(view: View) -> Tile:
    """Running and waiting requests of the server."""
    counts = (facts.latest(view, f"server.requests_{which}") for which in ("running", "waiting"))
    running, waiting = (units.NA if count is None else f"{count:.0f}" for count in counts)
    traces = (
        _trace(view, "server.requests_running", "run", figure=f"running {running:>4}"),
        _trace(view, "server.requests_waiting", "wait", figure=f"waiting {waiting:>4}"),
    )
    return _tile(
        view, "server.requests_running", "requests", f"{running} run {waiting} wait", traces
    )


def _latency(view: View) -> Tile:
    """Latencies of requests: TTFT and TPOT."""
    other = "itl_s" if view.run is not None and view.run.watched else "tpot_s"
    ttft, between = facts.latest(view, "workload.ttft_s"), facts.latest(view, f"workload.{other}")
    first, second, unit = units.durations(ttft, between)
    return _tile(
        view,
        "workload.ttft_s",
        f"TTFT, {FIGURES[other].label}",
        f"{first.strip()}, {second.strip()} {unit}",
        (_trace(view, "workload.ttft_s"),),
    )


def _step(view: View) -> Tile:
    p50, p99 = facts.percentiles(view)
    if p50 is None:
        return Tile("step", units.NA, (), "", facts.reason(view, "workload.step_time_s"))
    first, second, unit = units.durations(p50, p99)
    trace = _trace(view, "workload.step_time_s")
    return Tile(
        "step",
        f"p50 {first} p99 {second} {unit}",
        (trace,),
        f"p50/99 {first}/{second.strip()} {unit}",
    )


# --- the zone -------------------------------------------------------------------------------------

FIGURE = 19
"""Cells of the figures before the sparklines."""
PANEL = (
    device_columns.POWER,
    device_columns.TEMPERATURE,
    device_columns.SM_CLOCK,
    device_columns.POWER_CAP,
)
"""What the rule above the tiles says about a GPU."""
TOP = 10
MIN_WIDTH_FOR_TOPS = 34
"""Cells of the top of a scale, and of the room for a sparkline with its top."""
MIN_SPARK = 8
"""A shorter sparkline says nothing, and is left out."""
MIN_TITLE = 24
"""Cells of the rule that remain for the title."""
ELSEWHERE = "server on another machine"
NONE = "none"
"""The figure of a tile in whose histories all values are zero."""


def paint_devices(
    view: View, history: History, width: int, height: int, *, all_eight: bool, boxed: bool
) -> list[Row]:
    """The same number of rows for each metric, with gaps between them where there is room."""
    if height <= 0:
        return []
    inner, room = inner_width(width, boxed), height - (2 if boxed else 0)
    shown = tiles(view, all_eight)
    label = max(cell_width(tile.title) for tile in shown) + 1
    columns = max(1, inner - label - FIGURE - 2)
    tops = TOP if columns >= MIN_WIDTH_FOR_TOPS else 0
    time = window(0.0, view.now, columns - tops, SPARK_COLUMN_S)
    hold = hold_s(view)
    values = {
        trace.key: time.values(
            trace.key, history, hold if trace.key.startswith("workload.") else HOLD_S
        )
        for tile in shown
        for trace in tile.traces
    }
    each, gap = _spacing(len(shown), room)
    rows: list[Row] = []
    for n, tile in enumerate(shown):
        rows += fill([], inner, bool(n and gap and not n % gap)) + drawn(
            tile, values, columns, label + FIGURE, inner, each, tops
        )
    if not boxed:
        return fill(rows, width, height)
    title = _title(view, inner)
    span = f"{title}, {time.columns * time.per_column_s:.0f} s"
    figures = _figures(view, width)
    has_room = cell_width(span) + sum(cell_width(text) for text, _ in figures) + 8 <= width
    return panel(span if has_room else title, figures, rows, width, height, True)


def _title(view: View, width: int) -> str:
    if facts.server_is_elsewhere(view):
        return ELSEWHERE
    device = facts.device(view)
    if device.is_gpu:
        return f"{device.id} {facts.short_name(device.name)}"
    why = view.no_gpu_reason
    if not why:
        return "CPU"
    wordings = (f"CPU ({why})", f"CPU ({why.partition(':')[0]})")
    return next(
        (wording for wording in wordings if cell_width(wording) <= width - 2), "CPU (no NVIDIA GPU)"
    )


def _figures(view: View, width: int) -> list[Segment]:
    device = facts.device(view)
    if not device.is_gpu or facts.server_is_elsewhere(view):
        return []
    if why := trouble(view, device.id):
        return [(why, "alert")]
    figures = fitting(measured(view, PANEL, device.id), width - MIN_TITLE + len(GAP))
    return [(GAP.join(figures), "")] if figures else []


def _spacing(tiles: int, room: int) -> tuple[int, int]:
    """The number of rows of a tile, and the number of tiles between two blank rows (0: no blank
    row). All tiles have the same height."""
    plans = [(1, 0), (1, 4), *((each, gap) for each in range(1, max(2, room)) for gap in (2, 1))]
    return [
        plan for plan in plans if plan == (1, 0) or plan[0] * tiles + (tiles - 1) // plan[1] <= room
    ][-1]


def tile_at(tiles: Sequence[Tile], room: int, y: int) -> Tile | None:
    """The tile in row `y` of `room` rows of tiles."""
    each, gap = _spacing(len(tiles), room)
    rows = [n for n in range(len(tiles)) for _ in range(each + bool(n and gap and not n % gap))]
    return tiles[rows[y]] if 0 <= y < len(rows) else None


def drawn(
    tile: Tile,
    values: dict[str, list[float | None]],
    columns: int,
    head: int,
    width: int,
    height: int,
    tops: int = 0,
) -> list[Row]:
    """Title and figure in `head` cells on the base line of the sparkline beside them, which has
    `columns` cells. Two directions have a row each where there is room, the title in the first. The
    top of the scale stands in `tops` cells at the right end of a sparkline."""
    room = head - cell_width(tile.title) - 1
    short = cell_width(tile.figure.strip()) > room and tile.short
    text = NONE if _is_quiet(tile, values) else (short or tile.figure).strip()
    title: Row = [(tile.title, ""), (" ", "")]
    whole: Row = [
        (fit(text, room, ">"), "dim" if text in (units.NA, NONE) else "title"),
        ("  ", ""),
    ]
    if tile.reason or not tile.traces:
        return [*fill([], width, height - 1), line(width, *title, *whole, (tile.reason, "dim"))]
    traces = tile.traces[:1] if text == NONE else tile.traces
    if height < len(traces):
        return [line(width, *title, *whole, *_side_by_side(traces, values, columns))]
    each, more = divmod(height, len(traces))
    rows: list[Row] = []
    for n, trace in enumerate(traces):
        painted = shaded(spark(values[trace.key], each + (n < more), trace.high, apart=True))
        painted[0] = [*painted[0], (fit(_top(trace, values[trace.key]), tops, ">"), "dim")]
        *above, base = painted
        rows += [line(width, (" " * (head + 2), ""), *texts) for texts in above]
        begin = [(" " * (head - room), "")] if n else title
        own: Row = (
            [(fit(trace.figure, room, ">"), "title"), ("  ", "")] if len(traces) > 1 else whole
        )
        rows.append(line(width, *begin, *own, *base))
    return rows


def _top(trace: TileTrace, values: Sequence[float | None]) -> str:
    """The top of the scale of a history."""
    top = trace.high or max((value for value in values if value is not None), default=0.0)
    return scale_top(trace.key.partition("{")[0], top)


def _is_quiet(tile: Tile, values: dict[str, list[float | None]]) -> bool:
    """Whether several series have values in the time in sight, all of them zero: figures and lines
    of zeros are clutter. A series without values is missing, not zero."""
    measured = [
        [value for value in values[trace.key] if value is not None] for trace in tile.traces
    ]
    zero = all(measured) and not any(map(any, measured))
    return zero and len(tile.traces) > 1 and not any(digit in tile.figure for digit in "123456789")


def _side_by_side(
    traces: tuple[TileTrace, ...], values: dict[str, list[float | None]], columns: int
) -> Row:
    """The newest columns of each trace, after its label; where these would be few, those of the
    sum."""
    row: Row = []
    part = columns // len(traces) - 1
    labels = [cut(f"{trace.label} ", part) for trace in traces]
    if part - max(map(cell_width, labels)) < MIN_SPARK:
        return _sum_of(traces, values, columns)
    for trace, label in zip(traces, labels, strict=True):
        shown = values[trace.key]
        filled = next((n for n in range(len(shown), 0, -1) if shown[n - 1] is not None), 0)
        start = max(0, filled - (part - cell_width(label)))
        texts = shaded(spark(shown[start:filled], 1, trace.high, apart=True))
        row += [(" ", "")] * bool(row) + line(part, (label, "dim"), *texts[0])
    return row


def _sum_of(
    traces: tuple[TileTrace, ...], values: dict[str, list[float | None]], columns: int
) -> Row:
    """The newest columns of the sum of the traces, after their labels: `rx+tx`."""
    label = "+".join(trace.label for trace in traces) + " "
    both = [
        None if None in column else sum(filter(None, column))
        for column in zip(*(values[trace.key] for trace in traces), strict=True)
    ]
    room = columns - cell_width(label)
    return (
        [(label, "dim"), *shaded(spark(both[-room:], 1, None, apart=True))[0]]
        if room >= MIN_SPARK
        else []
    )
