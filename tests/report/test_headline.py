"""The answer of the machine overview: which GPU is free, idle since when and by whom, sick and
why, at each width."""

from __future__ import annotations

import msgspec
import pytest

from gpuconsole.model.machine import Process
from gpuconsole.model.metrics import series_key
from gpuconsole.model.text import cell_width
from gpuconsole.report.machine.headline import headline
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import gpu_states
from gpuconsole.session.idle import QuietTime
from tests.tui.fake_gpu_box import GIB, QUIET, box, idle, shared


def told(view: View, width: int, rows: int = 2) -> list[str]:
    gpus = [device for device in view.devices if device.is_gpu]
    lines = headline(view, gpus, gpu_states(view, gpus), width, rows)
    assert len(lines) <= rows
    return ["".join(text for text, _ in row) for row in lines]


def test_the_headline_answers_who_holds_what_since_when_and_what_is_sick() -> None:
    assert told(shared(), 200, 1) == [
        "8 GPUs · 1 free: gpu:6"
        " · 1 idle 14 min: gpu:4, 39.6 GiB, pid 4242 (anna), about 3.10 per hour"
        " · 1 sick: gpu:1 heat slowdown · 5 busy · 7 processes"
    ]


def test_details_go_before_names_where_there_is_little_room() -> None:
    assert told(shared(), 78) == [
        "8 GPUs · 1 free: gpu:6 · 1 idle 14 min: gpu:4, pid 4242 (anna)",
        "1 sick: gpu:1 heat slowdown · 5 busy",
    ]
    assert told(shared(), 78, 1) == [
        "8 GPUs · 1 free: gpu:6 · 1 idle 14 min: gpu:4, anna · 1 sick: gpu:1 · 5 busy"
    ]
    assert told(shared(), 58, 1) == ["1 free: gpu:6 · 1 idle 14 min: gpu:4 · 1 sick"]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("width", [58, 78, 118, 198])
@pytest.mark.parametrize("gpus", [8, 64])
def test_nothing_is_cut_and_the_free_gpus_are_named(gpus: int, width: int, rows: int) -> None:
    free = (3, 5, 6, 7) if gpus == 8 else (3, 4, 5, 6, 7, 12, 20, 21)
    held = {4: 900.0} if gpus == 8 else {16 + 2 * n: 600.0 * n for n in range(1, 10) if n != 2}
    lines = told(shared(gpus, free=free, held=held), width, rows)
    assert all(cell_width(line) <= width for line in lines)
    assert "gpu:3" in " ".join(lines) and "idle" in " ".join(lines)


def test_ranges_shorten_the_names_of_many_gpus() -> None:
    view = shared(64, free=(3, 4, 5, 6, 7, 12), held={20: 7200.0, 21: 600.0, 40: 90_000.0})
    assert told(view, 150)[0].startswith(
        "64 GPUs · 6 free: gpu:3-7,12"
        " · 3 idle up to 25 h: gpu:20-21,40, 119 GiB, 3 processes (anna), about 1.16 per hour"
    )


def test_without_a_price_no_money_is_named() -> None:
    view = shared()
    free = msgspec.structs.replace(view.environment, price_per_hour=None)
    text = " ".join(told(msgspec.structs.replace(view, environment=free), 200))
    assert "pid 4242" in text and "per hour" not in text


def test_equal_faults_are_named_once() -> None:
    view = shared()
    hot = {series_key("gpu.clocks_hw_thermal", f"gpu:{n}"): 1.0 for n in (1, 2, 3)}
    text = " ".join(told(msgspec.structs.replace(view, latest=view.latest | hot), 200))
    assert "3 sick: gpu:1-3 heat slowdown" in text


def test_a_single_gpu_says_what_it_does() -> None:
    view = idle(box(1))
    still = {series_key(name, "gpu:0"): value for name, value in QUIET.items()}
    notebook = (Process(4242, "gpu:0", user="anna"),)
    held = msgspec.structs.replace(
        view,
        latest=view.latest | still | {series_key("gpu.hbm_used_bytes", "gpu:0"): 39.6 * GIB},
        processes=notebook,
        quiet={"gpu:0": QuietTime(900.0, True)},
    )
    assert told(held, 118) == ["H200: idle 15+ min, 39.6 GiB, pid 4242 (anna)"]
    hot = {series_key("gpu.clocks_hw_thermal", "gpu:0"): 1.0}
    assert told(msgspec.structs.replace(view, latest=view.latest | hot), 118) == [
        "H200: sick: heat slowdown (4 processes)"
    ]


def test_each_kind_has_the_colour_of_its_state() -> None:
    view = shared()
    gpus = [device for device in view.devices if device.is_gpu]
    (row,) = headline(view, gpus, gpu_states(view, gpus), 200, 1)
    styles = {text.split()[1].strip(":"): style for text, style in row if ": gpu:" in text}
    assert styles == {"free": "good", "idle": "wait", "sick": "alert"}
