"""The layout of live tiles: a title, a figure, and a sparkline of the last minutes, or the reason why there is no value."""

from __future__ import annotations

from gpuconsole.report.cells import Row, Segment, beside, cell_width, cut, fill, inner_width, line, panel, spread, wrap
from gpuconsole.report.machine.tiles import History, Tile, Trace
from gpuconsole.report.spark import spark


def paint_tile(tile: Tile, history: History, width: int, height: int) -> list[Row]:
    """One row: title and figure. Two: a sparkline under them. From three on: in a box."""
    missing = tile.figure.strip() == "n/a"
    figure: Segment = (_figure(tile, width - (1 if height == 1 else 8)), "dim" if missing else "accent")
    if height == 1:
        room = width - cell_width(figure[0]) - 1
        return [spread(width, [(cut(tile.title, room), "dim"), (" ", "")], [figure])]
    boxed = height >= 3
    room = inner_width(width, boxed)
    body = _reason(tile, room, height - 2 if boxed else 1) if tile.reason else _traces(tile, history, room, height - 2 if boxed else 1)
    return panel(tile.title, [figure], body, width, height, boxed)


def _figure(tile: Tile, room: int) -> str:
    """The full figure where the title fits beside it, else the short figure."""
    fits = cell_width(tile.title) + cell_width(tile.figure) <= room
    return tile.figure if fits or not tile.short else tile.short


def _reason(tile: Tile, width: int, height: int) -> list[Row]:
    return fill([line(width, (text, "dim")) for text in wrap(tile.reason, width, height)], width, height)


def _traces(tile: Tile, history: History, width: int, height: int) -> list[Row]:
    """Traces above each other where there is room, else side by side."""
    traces = tile.traces
    if not traces:
        return fill([], width, height)
    if height >= len(traces):
        each, more = divmod(height, len(traces))
        return [row for n, trace in enumerate(traces) for row in _trace(trace, history, width, each + (n < more))]
    each = width // len(traces)
    widths = [each - 1] * (len(traces) - 1) + [width - each * (len(traces) - 1)]
    parts = [_trace(trace, history, columns, 1) for trace, columns in zip(traces, widths, strict=True)]
    return [[segment for n, part in enumerate(parts) for segment in ([(" ", "")] if n else []) + part[0]]]


def _trace(trace: Trace, history: History, width: int, height: int) -> list[Row]:
    label = f"{trace.label} " if trace.label else ""
    columns = max(0, width - len(label))
    texts = spark(history(trace.key, columns), height, trace.high)
    return [line(width, (label if n == height - 1 else " " * len(label), "dim"), (text, "trace")) for n, text in enumerate(texts)]


def paint_tiles(tiles: list[Tile], history: History, width: int, per_row: int, height: int) -> list[Row]:
    """Tiles in a grid, `per_row` in a row of `height` rows each."""
    rows: list[Row] = []
    for start in range(0, len(tiles), per_row):
        some = tiles[start : start + per_row]
        gap = 0 if height >= 3 else 2
        widths = [(width - gap * (per_row - 1)) // per_row] * per_row
        widths[-1] = width - sum(widths[:-1]) - gap * (per_row - 1)
        painted: list[list[Row]] = []
        for n, tile in enumerate(some):
            if n and gap:
                painted.append([[(" " * gap, "")] for _ in range(height)])
            painted.append(paint_tile(tile, history, widths[n], height))
        rows += beside(*painted)
    return rows
