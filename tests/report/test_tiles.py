"""The live figures of the device at the width of a usual terminal."""

from __future__ import annotations

import re

import msgspec
import pytest

from gpuconsole.model.machine import UNIFIED
from gpuconsole.model.metrics import series_key
from gpuconsole.model.serving import WATCHED, ServerFacts
from gpuconsole.report.machine.columns import device_line
from gpuconsole.report.machine.overview import paint_overview
from gpuconsole.report.machine.tiles import ELSEWHERE, paint_devices, tile_at, tiles
from gpuconsole.report.screen.chart import History
from gpuconsole.tui.widgets.header import paint_header
from tests.tui.fake_session import cpu_view, gpu_view, steps
from tests.tui.test_paint import text


def test_each_direction_has_its_figure_with_a_unit_and_all_lines_have_one_time_axis() -> None:
    def climbing(key: str, columns: int, seconds: float) -> list[float | None]:
        return [1e9 * n for n in range(columns)]

    painted = text(
        paint_devices(gpu_view(now=500.0), climbing, 60, 30, all_eight=True, boxed=True)
    ).splitlines()
    received, sent = (next(row for row in painted if way in row) for way in ("rx ", "tx "))
    assert received.index(" GB/s") == sent.index(" GB/s")
    begins = {
        re.search("[▁▂▃▄▅▆▇█]", row).start()
        for row in painted
        if re.search("(SM active|PCIe|rx|step) ", row)
    }  # type: ignore[union-attr]
    assert len(begins) == 1


def test_where_two_directions_share_a_row_the_row_has_both_figures() -> None:
    painted = text(
        paint_devices(
            gpu_view(),
            lambda key, columns, seconds: [0.0] * columns,
            60,
            10,
            all_eight=True,
            boxed=True,
        )
    )
    (row,) = [row for row in painted.splitlines() if "PCIe" in row]
    assert re.search(r"rx \S+ tx \S+ [kMG]?B/s  rx\+tx ▁{8,}", row), row


def test_traffic_that_is_zero_for_the_whole_time_is_no_clutter() -> None:
    zero = {key: 0.0 if "pcie" in key else value for key, value in gpu_view().latest.items()}
    painted = text(
        paint_devices(
            gpu_view(latest=zero),
            lambda key, columns, seconds: [0.0] * columns,
            60,
            30,
            all_eight=True,
            boxed=True,
        )
    )
    (row,) = [row for row in painted.splitlines() if "PCIe" in row]
    assert re.search(r"PCIe +none  ▁+ ", row) and "rx" not in painted


@pytest.mark.parametrize("height", [10, 13, 17, 21, 25, 33])
def test_tiles_are_equally_high_with_equal_gaps_and_a_name_on_the_line_of_each(height: int) -> None:
    view = gpu_view()
    full: History = lambda key, columns, seconds: [1e15] * columns  # noqa: E731
    painted = text(paint_devices(view, full, 60, height, all_eight=True, boxed=True)).splitlines()[
        1:-1
    ]
    names = [
        next(n for n, row in enumerate(painted) if row.startswith(f"│ {tile.title} "))
        for tile in tiles(view, True)
    ]
    assert names == sorted(names) and len(names) == 8
    for n, row in zip(names, (painted[n] for n in names), strict=True):
        assert any(level in row for level in "▇█") or "n/a" in row, (n, row)
    # the first row of each history: its top eighth is blank
    high = [n for n, row in enumerate(painted) if "▇" in row]
    assert len(high) >= 7
    assert sum(not row.strip("│ ") for row in painted[names[-1] + 1 :]) <= 3, "the rest"
    for y in range(height - 2):
        tile = tile_at(tiles(view, True), height - 2, y)
        assert tile is None or names[tiles(view, True).index(tile)] >= 0


@pytest.mark.parametrize("mean_s", [12.3e-6, 1.23e-3, 0.0123, 0.123, 0.44, 0.92, 1.24, 12.4])
def test_the_step_tile_keeps_its_title_at_120_columns(mean_s: float) -> None:
    shown = gpu_view(step_times=steps(mean_s))
    painted = text(
        paint_devices(
            shown,
            lambda key, columns, seconds: [None] * columns,
            60,
            12,
            all_eight=True,
            boxed=True,
        )
    )
    (row,) = [row for row in painted.splitlines() if "p50" in row]
    assert " step " in row and "…" not in row
    assert len(row) == 60


def test_series_without_values_in_sight_are_not_called_none() -> None:
    zero = {key: 0.0 if "pcie" in key else value for key, value in gpu_view().latest.items()}
    painted = text(
        paint_devices(
            gpu_view(latest=zero),
            lambda key, columns, seconds: [None] * columns,
            60,
            30,
            all_eight=True,
            boxed=True,
        )
    )
    assert "none" not in "".join(row for row in painted.splitlines() if "PCIe" in row)


def test_memory_that_a_gpu_shares_with_the_host_is_called_so_in_each_view() -> None:
    for facts in ({}, {"memory_kind": UNIFIED}):
        view = gpu_view()
        devices = [
            msgspec.structs.replace(device, facts=facts) if device.is_gpu else device
            for device in view.devices
        ]
        view = msgspec.structs.replace(view, devices=devices)
        line = text([device_line(view, devices[0], 140)])
        overview = text(
            paint_overview(view, (), lambda key, columns: [None] * columns, 140, 30).rows
        )
        names = " ".join(tile.title for tile in tiles(view, all_eight=True))
        assert [(UNIFIED in shown, "HBM" in shown) for shown in (line, overview, names)] == [
            (bool(facts), not facts)
        ] * 3


def test_traffic_that_the_driver_samples_for_20_ms_says_so() -> None:
    view = gpu_view()
    key = series_key("gpu.pcie_rx_bytes_per_s", view.device)
    titles = [
        [
            tile.title
            for tile in tiles(msgspec.structs.replace(view, substitutes=source), all_eight=True)
        ]
        for source in ({}, {key: "nvml"}, {key: "nvml.field"})
    ]
    assert [row[4] for row in titles] == ["PCIe", "PCIe, 20 ms", "PCIe"]


@pytest.mark.parametrize("here", [True, None, False])
def test_a_server_on_another_machine_has_nothing_of_this_machine(here: bool | None) -> None:
    shown = cpu_view()
    run = msgspec.structs.replace(shown.runs[-1], workload=WATCHED, server=ServerFacts(here=here))
    shown = msgspec.structs.replace(shown, runs=(run,))
    no_history: History = lambda key, columns, seconds: [0.0] * columns  # noqa: E731
    painted = text(
        [
            *paint_header(shown, 100, 3),
            *paint_devices(shown, no_history, 60, 30, all_eight=True, boxed=True),
        ]
    )
    of_machine = ["gpubox-07", "CPU", "cores busy", "memory", "disk"]
    assert [word for word in of_machine if word in painted] == ([] if here is False else of_machine)
    assert "tokens/s" in painted and (ELSEWHERE in painted) == (here is False)
