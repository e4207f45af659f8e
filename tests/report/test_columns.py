"""The table of the columns of a device, and the lines that are made from it."""

from __future__ import annotations

import re

import msgspec
import pytest

from gpuconsole.model import device_columns
from gpuconsole.model.device_columns import ALARMS, DeviceColumn
from gpuconsole.model.metrics import CATALOGUE, series_key
from gpuconsole.report.cells import row_width
from gpuconsole.report.machine.columns import (
    GPU_LINE,
    cell,
    device_line,
    gpu_lines,
    keeps_width,
)
from gpuconsole.report.machine.gpus import COLUMNS, GpuColumn
from tests.report.test_gpu_table import CARDS, MIXED, machine
from tests.tui.fake_gpu_box import box
from tests.tui.fake_session import gpu_view

ALL = {
    name: column
    for name, column in vars(device_columns).items()
    if isinstance(column, DeviceColumn)
}


def test_every_column_reads_declared_metrics() -> None:
    for column in (*ALL.values(), *device_columns.NVLINK_COLUMNS):
        units = {CATALOGUE[metric].unit for metric in (column.metric, column.top) if metric}
        assert len(units) == 1, column
        assert not column.beside or CATALOGUE[column.beside].unit == "bytes/s", column
        assert not column.ways or CATALOGUE[column.metric].unit == "bytes/s", column
    assert ALARMS.keys() <= CATALOGUE.keys()


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.head)
def test_a_column_that_keeps_its_width_has_it_with_and_without_a_value(column: GpuColumn) -> None:
    shown = box(8)
    widths = {
        len(cell(view, column.device, gpu.id))
        for view in (shown, msgspec.structs.replace(shown, latest={}))
        for gpu in view.devices[:8]
    }
    assert not keeps_width(column.device) or len(widths) == 1, widths


def test_a_narrow_line_leaves_out_whole_figures_the_last_first() -> None:
    view = gpu_view()
    figures = (
        "SM  78 %",
        "tensor  31 %",
        "HBM 61.2/140 GiB",
        "HBM bw 2.02 TB/s  42 %",
        "612/700 W",
        "61 °C",
        "SM clock 1.98 GHz",
    )
    for width in range(10, 200):
        row = device_line(view, view.devices[0], width)
        assert row_width(row) <= max(width, len("gpu:0 H200"))
        assert {text.strip() for text, _ in row[1:]} <= set(figures)
    assert [text.strip() for text, _ in device_line(view, view.devices[0], 200)[1:]] == list(
        figures
    )
    # the power cap is shown only while it lowers the clocks
    assert len(GPU_LINE) == len(figures) + 1


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_figures_of_several_gpus_stand_below_one_another(width: int) -> None:
    shown = machine(CARDS[0], CARDS[3], CARDS[7], MIXED[-1])
    gpus = [device for device in shown.devices if device.is_gpu]
    rows = ["".join(text for text, _ in row) for row in gpu_lines(shown, gpus, width)]
    assert all(len(row) <= width for row in rows)
    for figure in ("tensor", r"HBM +\d+", r"\d+/\d+ W", r"\d+ °C"):
        found = [match.start() for row in rows if (match := re.search(figure, row))]
        assert len(found) in (0, 4) and len(set(found)) <= 1, rows
    assert [row[23:].startswith("SM  ") for row in rows] == [False, True, True, False]
    none = machine(CARDS[0], CARDS[2])
    for gpu in none.devices[:2]:
        text = "".join(text for text, _ in device_line(none, gpu, 200))
        assert "n/a" not in text and "GPU-Util" in text, text


def test_the_power_cap_is_shown_while_it_lowers_the_clocks() -> None:
    view = gpu_view()
    capped = msgspec.structs.replace(
        view, latest={**view.latest, series_key("gpu.power_cap_time_ratio", "gpu:0"): 0.31}
    )
    assert "power cap  31 % of time" in "".join(
        text for text, _ in device_line(capped, view.devices[0], 200)
    )
