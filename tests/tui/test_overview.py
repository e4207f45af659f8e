"""The machine overview: what every kind of machine shows, at all sizes."""

from __future__ import annotations

import datetime

import msgspec
import pytest

from gpuconsole.cli.parser import parse
from gpuconsole.engine import catalog
from gpuconsole.model.metrics import series_key
from gpuconsole.report.cells import row_width
from gpuconsole.report.machine.overview import Hint, paint_overview
from gpuconsole.session.api import View
from gpuconsole.tui.widgets.overview import COMMANDS, LEAST_HISTORY_S, OverviewZone, column_s
from tests.tui.fake_gpu_box import box
from tests.tui.fake_session import FakeSession, gpu_view, view

HINTS = [
    Hint("s", "scenarios", "Training and serving, most with one fault to find."),
    Hint("q", "quit", "Quit."),
    Hint("gpuconsole --demo", "", "a recorded session"),
]


FULL = 1e15
"""A value at the top of every scale: rows for a history are then not blank."""


def idle(shown: View) -> View:
    return msgspec.structs.replace(shown, runs=(), trials=(), state="")


def painted(shown: View, width: int, height: int) -> str:
    rows = paint_overview(shown, HINTS, lambda key, columns: [FULL] * columns, width, height)
    assert len(rows) == height
    assert {row_width(row) for row in rows} == {width}
    return "\n".join("".join(text for text, _ in row) for row in rows)


@pytest.mark.parametrize("size", [(200, 47), (120, 37), (80, 21), (40, 9), (12, 3)])
@pytest.mark.parametrize("gpus", [0, 1, 8, 64])
def test_fits_any_size(gpus: int, size: tuple[int, int]) -> None:
    text = painted(idle(box(gpus)) if gpus else view(), *size)
    if size[0] >= 80:
        assert "s scenarios" in text and "Training and serving" in text


def test_a_machine_without_a_gpu_says_so() -> None:
    text = painted(view(), 120, 37)
    for words in ("No GPU: no NVIDIA driver", "No number is GPU data", "cores busy", "gpuconsole --demo"):
        assert words in text
    assert "HBM" not in text and "processes on the GPUs" not in text


def test_every_gpu_of_eight_has_its_state_and_the_processes_are_listed() -> None:
    text = painted(idle(box(8, lost=[3])), 80, 21)
    assert all(f"gpu:{n}" in text for n in range(8))
    assert "1 lost" in text and "lost: fell off the bus" in text and "4 processes" in text
    assert "4100" in text and "train.py" in text
    still = {"gpu.utilization_ratio": 0.0, "gpu.processes": 0.0}
    free = painted(
        msgspec.structs.replace(idle(gpu_view()), latest={series_key(name, "gpu:0"): value for name, value in still.items()}), 120, 37
    )
    assert "H200: free." in free and "No process holds a GPU." in free


def faulty(**changes: object) -> View:
    """Eight GPUs: the second was hot, the third had memory errors before and now, the fourth before, the fifth had an XID, a person has lowered the
    power of the sixth, and the last is lost after an XID."""
    shown = idle(box(8, lost=[7]))
    values = {
        series_key(name, gpu): value
        for name, gpu, value in (
            ("gpu.clocks_hw_thermal", "gpu:1", 1.0), ("gpu.ecc_uncorrected", "gpu:2", 9.0), ("gpu.ecc_uncorrected", "gpu:3", 4.0),
            ("gpu.power_limit_w", "gpu:5", 400.0),
        )
    }  # fmt: skip
    errors = {"gpu:4": (79, shown.now - 60), "gpu:7": (79, shown.now - 30)}
    known: dict[str, object] = {"latest": shown.latest | values, "xids": errors, "ecc_before": {"gpu:2": 7.0, "gpu:3": 4.0}}
    return msgspec.structs.replace(shown, **(known | changes))


@pytest.mark.parametrize(("width", "height"), [(200, 47), (120, 37), (80, 21)])
def test_a_sick_gpu_looks_sick_in_its_row(width: int, height: int) -> None:
    shown = faulty()
    rows = paint_overview(shown, HINTS, lambda key, columns: [FULL] * columns, width, height)
    text = ["".join(part for part, _ in row) for row in rows]
    at = datetime.datetime.fromtimestamp(shown.wall - 60).strftime("%H:%M:%S" if width > 80 else "%H:%M")
    assert any("8 GPUs: 7 busy, 1 lost, 4 with a fault" in row for row in text)
    words = {"gpu:1": "heat slowdown", "gpu:2": "2 ECC errors", "gpu:4": f"XID 79 {at}", "gpu:5": "power cap", "gpu:7": "XID 79"}
    for gpu, fault in words.items():
        row = next(
            row for row in rows if row and f"{gpu} " in "".join(part for part, _ in row) and "H200" in "".join(part for part, _ in row)
        )
        assert any(fault in part and style == "alert" for part, style in row), (gpu, row)
    calm = [row for row in rows if any("gpu:0 " in part or "gpu:3 " in part for part, _ in row)]
    assert not any(style == "alert" for row in calm for _, style in row)
    if width > 80:
        assert any("4 ECC errors before" in part and style == "dim" for row in calm for part, style in row)


def test_a_power_cap_at_the_default_limit_is_no_fault() -> None:
    """An H100 works like this at full load."""
    assert "with a fault" not in painted(idle(box(8)), 120, 37)


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_at_most_a_third_is_empty_on_a_large_screen(gpus: int) -> None:
    rows = painted(idle(box(gpus)) if gpus else view(), 200, 47).splitlines()
    assert sum(not row.strip(" │|") for row in rows) <= len(rows) / 3


@pytest.mark.parametrize(("columns", "seconds"), [(160, 2.0), (45, 2.0), (44, 5.0), (22, 5.0), (18, 5.0), (17, 10.0), (10, 10.0)])
def test_a_narrow_history_shows_as_much_time_as_a_wide_one(columns: int, seconds: float) -> None:
    assert column_s(columns) == seconds
    assert columns * seconds >= LEAST_HISTORY_S or seconds == 10.0


def test_what_the_processes_do_not_need_shows_the_history_of_the_host() -> None:
    lines = painted(idle(box(8)), 200, 47).splitlines()
    at = next(n for n, row in enumerate(lines) if row.startswith("│ cpu "))
    assert all("█" in row for row in lines[at - 2 : at + 1]) and "cores busy" in lines[at]
    assert lines[at].index("█") == lines[at - 8].index("█")  # below those of the GPUs
    assert "…" not in lines[at]  # a cut number is a wrong number
    foot = lines[at:]
    assert sum(not row.strip(" │") for row in foot) <= 2, foot
    small = painted(idle(box(8)), 80, 21).splitlines()
    assert sum("cores busy" in row for row in small) == 1 and "█" not in next(row for row in small if "cores busy" in row)


def test_an_idle_machine_without_a_gpu_shows_examples_in_place_of_flat_lines() -> None:
    scenarios = list(catalog.scenarios()[0].values())
    for width, height in ((120, 37), (200, 47)):
        rows = paint_overview(view(), HINTS, lambda key, columns: [0.0] * columns, width, height, scenarios)
        assert {row_width(row) for row in rows} == {width} and len(rows) == height
        lines = ["".join(text for text, _ in row) for row in rows]
        painted = "\n".join(lines)
        assert sum(not one.strip(" │▁") for one in lines) <= height / 4, painted
        assert "start here" in painted and "Training waits for slow storage" in painted and "…" not in painted
        assert all(one.name in painted for one in scenarios)


def test_the_history_of_an_idle_machine_fills_its_columns_from_the_first_minute_on() -> None:
    asked: list[tuple[int, float]] = []

    class Api(FakeSession):
        def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
            asked.append((columns, seconds))
            return [0.0] * columns

    shown = view(now=30.0)
    OverviewZone(Api(shown)).draw(shown, 120, 37)
    assert asked and all(columns > 55 and seconds <= 40 for columns, seconds in asked), asked


@pytest.mark.parametrize("command", [hint.key for hint in COMMANDS])
def test_each_command_that_the_overview_names_exists(command: str) -> None:
    program, *words = command.split()
    assert program == "gpuconsole"
    parse(words)
