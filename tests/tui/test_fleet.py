"""The compact view of many GPUs."""

from __future__ import annotations

import re
import time

import msgspec
import pytest

from gpuconsole.model.metrics import series_key
from gpuconsole.report.cells import Row
from gpuconsole.report.machine.fleet import fleet_rows, paint_fleet
from gpuconsole.session.api import View
from tests.tui.fake_gpu_box import assert_exact, box, text
from tests.tui.fake_session import view

MARKS = "▁▂▃▄▅▆▇█"


def of(row: Row, style: str) -> str:
    return "".join(part for part, name in row if name == style)


def with_all(shown: View, metric: str, value: float) -> View:
    keys = {series_key(metric, device.id): value for device in shown.devices if device.is_gpu}
    return msgspec.structs.replace(shown, latest=shown.latest | keys)


@pytest.mark.parametrize("gpus", [1, 5, 8, 9, 16, 31, 64, 65, 130])
def test_rows_are_as_wide_as_asked_and_as_many(gpus: int) -> None:
    shown = box(gpus, lost=(3,) if gpus > 3 else (), stuck=(0,), mig=(4,) if gpus > 4 else ())
    for width in (*range(1, 200, 9), 80, 120, 200):
        for height in (0, 1, 2, 4, 7, 9):
            assert_exact(paint_fleet(shown, width, height), width, height)


def test_few_gpus_have_their_lines_in_the_header() -> None:
    assert [fleet_rows(box(gpus), 8) for gpus in (1, 4, 5, 64)] == [0, 0, 8, 8]
    assert fleet_rows(box(4, mig=(0, 1)), 9) == 0  # slices are parts of a GPU
    assert fleet_rows(box(8), 3) == 3
    assert fleet_rows(view(), 9) == 0
    assert paint_fleet(view(), 80, 2) == [[(" " * 80, "")]] * 2


def test_eight_gpus_have_a_mark_and_a_figure_each() -> None:
    shown = box(8)
    for width in (80, 120):
        numbers, *rows = paint_fleet(shown, width, 8)
        assert text([numbers]).split()[:10] == ["8", "GPUs", *"01234567"]
        figures = [round(shown.latest[series_key("gpu.power_w", f"gpu:{n}")]) for n in range(8)]
        power = next(text([row]) for row in rows if text([row]).startswith("power"))
        assert [int(one) for one in re.findall(rf"[{MARKS}]+ *(\d+)", power)] == figures
        assert re.search(r"\d+ +\d+ +\d+ W", power)
        for unit in ("%", "GiB", "GB/s", "W", "°C"):
            assert unit in text(rows)


def test_without_gpm_the_first_row_is_the_utilization_of_nvidia_smi() -> None:
    shown = box(8)
    shown = msgspec.structs.replace(
        shown,
        latest={
            key: value for key, value in shown.latest.items() if not key.startswith("gpu.sm_active")
        },
    )
    _, first = paint_fleet(shown, 120, 2)
    assert text([first]).startswith("GPU-Util") and "n/a" not in text([first])


def test_sixteen_gpus_still_have_figures_at_120_columns() -> None:
    row = text(paint_fleet(box(16), 120, 2)[1:])
    assert len(re.findall(rf"[{MARKS}] *\d+", row)) == 16


@pytest.mark.parametrize("width", [80, 120, 200])
def test_sixty_four_gpus_have_a_mark_each_and_the_spread(width: int) -> None:
    shown = box(64)
    _, *rows = paint_fleet(shown, width, 8)
    powers = [shown.latest[series_key("gpu.power_w", f"gpu:{n}")] for n in range(64)]
    for row in rows:
        assert sum(text([row]).count(mark) for mark in MARKS) == 64
    power = text(rows[5:6])
    assert f"{min(powers):.0f}" in power and f"{max(powers):.0f}" in power and "W" in power


def test_a_lost_gpu_is_a_red_x_and_counted() -> None:
    for gpus in (8, 16, 64):
        numbers, *rows = paint_fleet(box(gpus, lost=(3, 5)), 120, 8)
        assert of(numbers, "alert").strip() == "2 lost"
        for row in rows:
            assert of(row, "alert").split() in (["x", "x"], ["xx"])
    assert of(paint_fleet(box(64, lost=(3, 5)), 80, 1)[0], "alert").endswith("2 lost")


def in_mig_mode(shown: View, gpu: str) -> View:
    """The driver reports no utilization of a GPU in MIG mode."""
    gone = series_key("gpu.utilization_ratio", gpu)
    latest = {key: value for key, value in shown.latest.items() if key != gone}
    return msgspec.structs.replace(shown, latest=latest)


def test_a_missing_figure_is_a_dot_not_a_zero() -> None:
    _, activity, *_, power, _ = paint_fleet(in_mig_mode(box(64, mig=(9,)), "gpu:9"), 120, 8)
    assert text([activity]).count("·") == 1
    assert text([power]).count("·") == 0
    assert "n/a" in text(paint_fleet(in_mig_mode(box(8, mig=(2,)), "gpu:2"), 120, 2))


def test_old_figures_are_not_shown_as_present_ones() -> None:
    shown = with_all(box(64, stuck=(9, 10)), "gpu.power_w", 300.0)
    shown.latest[series_key("gpu.power_w", "gpu:9")] = 690.0
    numbers, *rows = paint_fleet(shown, 120, 8)
    assert "2 old" in text([numbers])
    assert all(text([row]).count("?") == 2 for row in rows)
    assert "690" not in text(rows[5:6])


def test_the_device_of_the_run_is_accented() -> None:
    for shown in (
        msgspec.structs.replace(box(64), device="gpu:13"),
        msgspec.structs.replace(box(64), device="gpu:13/mig:2"),
    ):
        numbers, row, *_ = paint_fleet(shown, 120, 8)
        assert of(numbers, "accent") == "13"
        assert len(of(row, "accent")) == 1
        assert (
            text([numbers]).index("13")
            == 9 + 13 + 1
            == len("".join(part for part, _ in row[: [s for _, s in row].index("accent")]))
        )


@pytest.mark.parametrize(("gpus", "width"), [(8, 80), (8, 120), (16, 120), (64, 80), (64, 120)])
def test_nothing_moves_when_figures_do(gpus: int, width: int) -> None:
    looks = set()
    for share, watts, degrees in ((0.0, 9.0, 5.0), (0.5, 99.6, 86.0), (1.0, 700.0, 104.0)):
        shown = box(gpus)
        for metric in ("gpu.sm_active_ratio", "gpu.tensor_active_ratio", "gpu.dram_active_ratio"):
            shown = with_all(shown, metric, share)
        shown = with_all(with_all(shown, "gpu.power_w", watts), "gpu.temperature_c", degrees)
        shown = with_all(shown, "gpu.hbm_used_bytes", share * 140 * 2**30)
        numbers, *rows = (text([row]) for row in paint_fleet(shown, width, 8))
        marks = tuple(tuple(at for at, char in enumerate(row) if char in MARKS) for row in rows)
        units = tuple(max(row.rfind(unit) for unit in ("%", "G", "W", "°")) for row in rows)
        looks.add((numbers, marks, units))
    assert len(looks) == 1


def test_more_than_64_are_folded_and_said_to_be() -> None:
    shown = with_all(box(128, kind="islands", lost=(100,)), "gpu.sm_active_ratio", 0.02)
    shown.latest[series_key("gpu.sm_active_ratio", "gpu:77")] = 1.0
    numbers, row = paint_fleet(shown, 120, 2)
    assert "a mark: max of 2 GPUs" in text([numbers])
    marks = text([row])[9:].replace(" ", "")[:64]
    assert marks[77 // 2] == "▇" and marks[50] == "x" and marks.count("▁") == 62


def test_the_most_useful_rows_stay_longest() -> None:
    shown = box(8)
    whole = [text([row]).split()[0] for row in paint_fleet(shown, 120, 8)[1:]]
    assert whole == ["SM", "HBM", "NVLink", "tensor", "HBM", "power", "temp"]
    assert [text([row]) for row in paint_fleet(shown, 120, 3)] == [
        text([row]) for row in paint_fleet(shown, 120, 8)[:3]
    ]
    assert text(paint_fleet(shown, 120, 1)).startswith("SM")


def test_watts_of_four_digits_are_whole_or_left_out() -> None:
    shown = with_all(with_all(box(16), "gpu.power_w", 1180.0), "gpu.power_limit_w", 1200.0)
    for width in (60, 80, 100, 120, 160):
        for gpus in (8, 16, 64):
            devices = tuple(box(gpus).devices)
            row = text(paint_fleet(msgspec.structs.replace(shown, devices=devices), width, 8)[6:7])
            assert set(re.findall(r"\d+", row)) <= {"1180", "1200"}


def test_painting_64_gpus_takes_at_most_twice_as_long_per_gpu_as_painting_8() -> None:
    took: dict[int, list[float]] = {8: [], 64: []}
    for shown, times in [(box(gpus), times) for gpus, times in took.items()] * 50:
        before = time.thread_time()
        paint_fleet(shown, 120, 8)
        times.append(time.thread_time() - before)
    assert min(took[64]) < 2 * 8 * min(took[8])


def test_a_link_of_which_one_direction_is_missing_has_no_sum() -> None:
    """Half of the traffic is not the traffic."""
    shown = box(8)
    received = {
        key: value for key, value in shown.latest.items() if not key.startswith("gpu.nvlink_tx")
    }
    rows = []
    for latest in (shown.latest, received):
        painted = text(
            paint_fleet(msgspec.structs.replace(shown, latest=latest), 120, 8)
        ).splitlines()
        rows.append(next(row for row in painted if row.startswith("NVLink")))
    whole, half = ([letter for letter in row if letter in MARKS] for row in rows)
    assert whole and not half


def test_a_box_of_two_measures_has_the_own_measure_of_each_gpu_in_its_first_row() -> None:
    shown = box(8)
    counters = ("gpu.sm_active", "gpu.tensor", "gpu.dram", "gpu.hbm_bytes")
    latest = {
        key: value
        for key, value in shown.latest.items()
        if not key.startswith(counters) or "gpu:3}" in key
    }
    one = msgspec.structs.replace(shown, latest=latest)
    _, first, *_ = text(paint_fleet(one, 120, 8)).splitlines()
    assert first.startswith("SM/util") and "n/a" not in first
    none = {key: value for key, value in latest.items() if not key.startswith(counters)}
    rows = text(paint_fleet(msgspec.structs.replace(shown, latest=none), 120, 8)).splitlines()
    assert not any(row.startswith(("tensor", "HBM bw")) for row in rows)
