"""Many GPUs in a strip: a row for each column, with a figure or at least a mark for each GPU, and
the spread at the right end.

All widths depend only on the number of GPUs and the width of the screen. No column moves when a
value changes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import NamedTuple

from gpuconsole.model import device_columns
from gpuconsole.model.device_columns import DeviceColumn
from gpuconsole.model.metrics import CATALOGUE, series_key
from gpuconsole.model.units import NA, digits
from gpuconsole.report.cells import LEVELS, SHADES, Row, Segment, fill, line, shade
from gpuconsole.report.machine.columns import for_devices, label, link_column, read
from gpuconsole.session.api import View
from gpuconsole.session.facts import silent_s

MAX_GPUS_WITHOUT_FLEET = 4
"""Up to this number of GPUs, each GPU has a line in the header."""
MAX_MARKS = 64
"""Above this number of GPUs, several GPUs share a mark."""
GROUP = 8
MAX_LEVEL = 7
"""The top eighth of a row stays blank, so that rows do not merge."""
LOST, MISSING, OLD = "x", "·", "?"


ROWS = (
    device_columns.SM, device_columns.HBM, device_columns.NVLINK, device_columns.PCIE,
    device_columns.TENSOR, device_columns.HBM_BANDWIDTH, device_columns.POWER,
    device_columns.TEMPERATURE, device_columns.UTILIZATION, device_columns.SM_CLOCK,
    device_columns.FAN,
)  # fmt: skip
"""All rows, the most useful first. On a small screen the last rows are omitted, and rows of which
no GPU has a value. One of the two links is shown, with the sum of both directions."""
OPTIONAL = (
    device_columns.TENSOR, device_columns.HBM_BANDWIDTH, device_columns.UTILIZATION,
    device_columns.SM_CLOCK, device_columns.FAN,
)  # fmt: skip
LINKS = (device_columns.NVLINK, device_columns.PCIE)
_UNITS = {
    "ratio": ("%", 0.01),
    "bytes": ("GiB", 2.0**30),
    "bytes/s": ("GB/s", 1e9),
    "Hz": ("MHz", 1e6),
}
"""Figures have no unit of their own. The unit of a row, and how large it is in the unit of the
metric, where they differ."""


class _Grid(NamedTuple):
    """`fold` GPUs share a cell of `mark` block characters, a figure of `figure` digits and `gap`
    blanks. There is another blank after every `group` cells. `spread`: the cells for the spread."""

    fold: int
    label: int
    mark: int
    figure: int
    gap: int
    group: int
    spread: int

    @property
    def cell(self) -> int:
        return self.mark + self.figure + self.gap

    def start(self, n: int) -> int:
        """The first column of the `n`th cell, counted from the first cell."""
        return n * self.cell + (n // self.group if self.group else 0)

    def width(self, cells: int) -> int:
        return self.start(cells - 1) + self.cell if cells else 0


_FULL = 21
_RANGE = 9
_NONE = 0
_SHAPES = tuple(
    [
        _Grid(1, 9, mark, figure, gap, 0, _FULL)
        for mark, figure, gap in (
            (12, 4, 3),
            (9, 4, 3),
            (6, 4, 2),
            (4, 4, 2),
            (3, 4, 2),
            (2, 4, 2),
            (1, 4, 2),
            (1, 4, 1),
            (1, 3, 1),
        )
    ]
    + [_Grid(1, 9, 2, 0, 1, 0, _FULL), _Grid(1, 9, 1, 0, 0, GROUP, _FULL)]
    + [_Grid(1, 7, 1, 0, 0, GROUP, _RANGE), _Grid(1, 7, 1, 0, 0, 0, _RANGE)]
)


@lru_cache(maxsize=64)
def _grid(gpus: int, width: int) -> _Grid:
    """The largest shape that fits. If no shape fits, more GPUs share a cell."""
    fold = -(-gpus // MAX_MARKS)
    while True:
        cells = -(-gpus // fold)
        for shape in _SHAPES:
            if shape.label + shape.width(cells) + shape.spread <= width:
                return shape._replace(fold=fold)
        if cells <= GROUP:
            return _Grid(fold, 7, 1, 0, 0, 0, _NONE)
        fold += 1


class _Cell(NamedTuple):
    """The value of a GPU in a row. If GPUs share a cell, the cell shows the greatest value. `share`
    is the share of the scale, or one of _LOST, _OLD, _MISSING."""

    share: float
    value: float
    hot: bool = False


class _Reading(NamedTuple):
    """A row: its unit, the cells of the GPUs in order, the current values, and the tops of their
    scales."""

    column: DeviceColumn
    unit: str
    cells: list[_Cell]
    values: list[float]
    tops: list[float]


_LOST, _OLD, _MISSING = math.inf, -0.5, -1.0


def fleet_rows(view: View, most: int) -> int:
    """The number of useful rows; 0 for a few GPUs, because each of them has a line in the
    header."""
    return min(most, len(ROWS)) if len(_gpus(view)) > MAX_GPUS_WITHOUT_FLEET else 0


def all_fleet_rows(view: View) -> int:
    """The rows of the whole strip, with the numbers of the GPUs."""
    return 1 + len(_columns(view, _gpus(view)))


def _columns(view: View, gpus: list[str]) -> list[DeviceColumn]:
    """The rows for these GPUs. Rows of which fewer than half of the GPUs have a value come last."""
    activity, link = for_devices(view, device_columns.SM, gpus), link_column(view, gpus)
    common: list[DeviceColumn] = [activity]
    rare: list[DeviceColumn] = []
    for column in ROWS:
        if column in (device_columns.SM, activity) or (column in LINKS and column is not link):
            continue
        count = sum(series_key(column.metric, gpu) in view.latest for gpu in gpus)
        if count or column not in OPTIONAL:
            (rare if count and 2 * count < len(gpus) else common).append(column)
    return [*common, *rare]


def paint_fleet(view: View, width: int, height: int) -> list[Row]:
    """The numbers of the GPUs, then a row for each metric. With one row of height, the first metric
    alone."""
    gpus = _gpus(view)
    if width <= 0 or height <= 0 or not gpus:
        return fill([], width, max(0, height))
    grid = _grid(len(gpus), width)
    readings = [_read(view, gpus, column) for column in _columns(view, gpus)[: max(1, height - 1)]]
    count = _count(view, gpus, readings)
    current = next((n for n, gpu in enumerate(gpus) if gpu == view.device.partition("/")[0]), -1)
    rows = [_numbers(gpus, current, count, grid, width)] if height > 1 else []
    remark = (f"  {count[0]}", count[1]) if height == 1 and count[1] != "dim" else None
    rows += [_row(reading, current, grid, width, remark) for reading in readings]
    return fill(rows, width, height)


def _gpus(view: View) -> list[str]:
    return [device.id for device in view.devices if device.is_gpu and not device.is_mig]


def _read(view: View, gpus: list[str], column: DeviceColumn) -> _Reading:
    """The values of a row."""
    unit = CATALOGUE[column.metric].unit
    name, size = _UNITS.get(unit, (unit, 1.0))
    reading = _Reading(column, name, [], [], [])
    for gpu in gpus:
        newest = read(view, column, gpu)
        value = newest.total
        if gpu in view.lost or value is None or not math.isfinite(value):
            reading.cells.append(_Cell(_LOST if gpu in view.lost else _MISSING, 0.0))
        elif silent_s(view, gpu):
            reading.cells.append(_Cell(_OLD, value / size))
        else:
            full = newest.top or 0.0
            share = value / full if full > 0 else 0.0
            reading.cells.append(_Cell(max(0.0, share), value / size, column.hot and share >= 1))
            reading.values.append(value / size)
            reading.tops.append(full / size)
    if 0.0 in reading.tops:  # without a known top, the highest value is the top
        best = max(reading.values) or 1.0
        cells = [
            cell._replace(share=cell.value / best) if cell.share == 0 and cell.value else cell
            for cell in reading.cells
        ]
        return reading._replace(cells=cells)
    return reading


def _count(view: View, gpus: list[str], readings: list[_Reading]) -> Segment:
    """The number of lost GPUs; without lost GPUs, of GPUs with old values; otherwise of all
    GPUs."""
    lost = sum(gpu in view.lost for gpu in gpus)
    if lost:
        return f"{lost} lost", "alert"
    old = sum(
        any(cell.share == _OLD for cell in cells)
        for cells in zip(*(reading.cells for reading in readings), strict=True)
    )
    return (f"{old} old", "accent") if old else (f"{len(gpus)} GPUs", "dim")


def _numbers(gpus: list[str], current: int, count: Segment, grid: _Grid, width: int) -> Row:
    """The GPU numbers above the cells: all numbers if a cell is wide enough, otherwise every
    eighth; always the number of the current GPU."""
    cells = -(-len(gpus) // grid.fold)
    room = grid.width(cells)
    note = f"a mark: max of {grid.fold} GPUs" if grid.fold > 1 else ""
    end = room - len(note) - 1 if note and len(note) + 6 <= room else room
    every = GROUP if grid.cell == 1 else 1
    here = current // grid.fold if current >= 0 else -1
    total = count[0] if len(count[0]) < grid.label else count[0].replace(" ", "")
    row: Row = [(f"{total:<{grid.label}}"[: grid.label], count[1])]
    at = 0
    for n in sorted({*range(0, cells, every), *([here] if here >= 0 else [])}):
        number = gpus[current if n == here else n * grid.fold].partition(":")[2]
        start = grid.start(n) + (grid.mark + grid.figure - len(number) if grid.figure else 0)
        crowds = n < here < n + every and start + len(number) >= grid.start(here)
        if start >= at + (grid.cell == 1 and at > 0) and start + len(number) <= end and not crowds:
            row += [(" " * (start - at), ""), (number, "accent" if n == here else "dim")]
            at = start + len(number)
    row.append((f"{note if end < room else '':>{room - at}}", "dim"))
    heads = {_FULL: f"  {'min':>4} {'med':>4} {'max':>4}", _RANGE: "  min-max"}.get(grid.spread, "")
    return _exactly(width, [*row, (heads, "dim")])


def _row(reading: _Reading, current: int, grid: _Grid, width: int, remark: Segment | None) -> Row:
    """A column of all GPUs. `remark` replaces the spread."""
    cells = reading.cells
    if grid.fold > 1:
        cells = [max(cells[start : start + grid.fold]) for start in range(0, len(cells), grid.fold)]
    here = current // grid.fold if current >= 0 else -1
    figures = bool(grid.figure) and (grid.figure > 3 or max(reading.tops, default=0.0) < 999.5)
    pieces: list[Segment] = []
    for n, cell in enumerate(cells):
        text, style = _mark(cell, n == here, bool(grid.figure))
        text = f"{text * grid.mark if 0 <= cell.share < _LOST else text:<{grid.mark}}"
        if grid.figure:
            figure = (
                NA
                if cell.share == _MISSING
                else ""
                if cell.share == _LOST or not figures
                else f"{cell.value:.0f}"
            )
            pieces += [
                (text, style),
                (f"{figure:>{grid.figure}}{'':{grid.gap}}", "" if style in SHADES else style),
            ]
        elif grid.mark > 1:
            pieces.append((text + " ", style))
        else:
            gap = bool(grid.group) and n % grid.group == grid.group - 1 and n < len(cells) - 1
            pieces.append((text + " " * gap, style))
    merged = [
        ("".join(text for text, _ in run), style)
        for style, run in groupby(pieces, key=itemgetter(1))
    ]
    room = width - grid.label - grid.width(len(cells))
    spread = remark or (_spread(reading, grid, room), "")
    return _exactly(width, [(label(reading.column, grid.label), "dim"), *merged, spread])


def _exactly(width: int, segments: list[Segment]) -> Row:
    """The same as `line`, but faster, because all characters here take one cell and need no
    cleaning."""
    left = width - sum(len(text) for text, _ in segments)
    return (
        [part for part in [*segments, (" " * left, "")] if part[0]]
        if left >= 0
        else line(width, *segments)
    )


def _mark(cell: _Cell, current: bool, shades: bool) -> Segment:
    """`shades`: brighter where the value is higher. Marks without figures have one shade: they are
    many, and each change of colour needs bytes."""
    if cell.share == _LOST:
        return LOST, "alert"
    if cell.share < 0:
        return (MISSING if cell.share == _MISSING else OLD), "dim"
    mark = LEVELS[max(1, min(MAX_LEVEL, round(cell.share * 8)))]
    return mark, "alert" if cell.hot else "accent" if current else shade(
        cell.share
    ) if shades else SHADES[1]


def _spread(reading: _Reading, grid: _Grid, room: int) -> str:
    """Minimum, median and maximum with the unit, and the top of the scale if it is measured and the
    same for all GPUs."""
    unit, values, tops = reading.unit, reading.values, reading.tops
    if not values or grid.spread == _NONE:
        return f"{NA:>6}" if grid.spread else ""
    low, high = min(values), max(values)
    if grid.spread == _RANGE:
        unit = "G" if unit == "GiB" else unit
        text = f"{low:.0f}-{high:.0f}{unit}"
        return f"{text if len(text) < _RANGE else f'to {high:.0f}{unit}':>{_RANGE}}"
    text = (
        "  "
        + " ".join(f"{_figure(value, unit):>4}" for value in (low, median(values), high))
        + f" {unit}"
    )
    top = (
        f" of {_figure(tops[0], unit)}"
        if reading.column.top and tops[0] and min(tops) == max(tops)
        else ""
    )
    return text + top if len(text) + len(top) <= room else text


def _figure(value: float, unit: str) -> str:
    return digits(value) if unit in ("GiB", "GB/s") else f"{value:.0f}"
