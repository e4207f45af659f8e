"""The profile screen and the roofline."""

from __future__ import annotations

import math

import msgspec
import pytest
from textual.pilot import Pilot

from gpuconsole.model.machine import Peaks
from gpuconsole.model.profile import OpClass, TopOp
from gpuconsole.report.cells import row_width
from gpuconsole.report.run.models import NO_PEAK, Roof, paint_roofline, roof_of
from gpuconsole.report.run.profile import of_peak, paint_profile
from gpuconsole.report.session import run_text
from gpuconsole.session.api import View
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.pages import ProfileScreen
from tests.tui.fake_profile import GPU_PROFILE, profiled_view
from tests.tui.fake_session import H200, FakeSession, gpu_view, view
from tests.tui.test_app import on_screen, shows, text_of
from tests.tui.test_paint import HOSTILE
from tests.waiting import until

ROOF = Roof(989e12, "bf16 dense, datasheet", 4.8e12, "datasheet")


def text(shown: View, width: int) -> str:
    rows = paint_profile(shown, width)
    assert {row_width(row) for row in rows} == {width}
    return "\n".join("".join(part for part, _ in row) for row in rows)


@pytest.mark.parametrize("width", [60, 80, 110, 120, 200])
def test_the_page_holds_everything(width: int) -> None:
    page = text(profiled_view(), width)
    words = " ".join(page.split())
    for part in (
        "3 steps of 440 ms",
        "3 182 kernels/s, 283 µs each",
        "gemm",
        "58.0 %",
        "74 %: share of kernel time",
        "H2D pageable 6x",
        "21.0 ms between",
        "idle for 20.0 ms a step",
        "gpuconsole-trace-train-gpt-20261121-110755.json.gz",
        "https://ui.perfetto.dev",
        "ridge at 206 FLOP/byte",
        "nvjet_hsh",
    ):
        # where lines are broken within these words
        assert part in words or width in (60, 110), part


def test_names_from_outside_are_shown_as_plain_text() -> None:
    top = [msgspec.structs.replace(op, name=HOSTILE) for op in GPU_PROFILE.top]
    stalls = msgspec.structs.replace(GPU_PROFILE.stalls, where=HOSTILE)
    page = text(
        profiled_view(msgspec.structs.replace(GPU_PROFILE, top=top, trace=HOSTILE, stalls=stalls)),
        120,
    )
    assert not any(ord(char) < 32 and char != "\n" for char in page)


@pytest.mark.parametrize("name", ["gemm", "elementwise"])
def test_a_class_lies_where_its_figures_say(name: str) -> None:
    """Up is more FLOP/s, right is more FLOP/byte; and the roof is drawn."""
    lone = [one for one in GPU_PROFILE.classes if one.name == name]
    rows = [
        "".join(part for part, _ in row)
        for row in paint_roofline([*lone, GPU_PROFILE.classes[1]], ROOF, 80, 20)
    ]
    inside = [
        row[next(n for n, char in enumerate(row) if char in "│┤") :]
        for row in rows
        if row.endswith("│")
    ]
    letter = name[0].upper()
    at = {
        mark: next(
            (x, y) for y, row in enumerate(inside) for x, char in enumerate(row) if char == mark
        )
        for mark in (letter, "A")
    }
    one, attention = lone[0], GPU_PROFILE.classes[1]
    assert (at[letter][0] < at["A"][0]) == ((one.intensity or 0) < (attention.intensity or 0))
    assert (at[letter][1] > at["A"][1]) == ((one.flops_per_s or 0) < (attention.flops_per_s or 0))
    assert any("▀▀▀" in row or "▄▄▄" in row for row in inside)


def test_the_roof_is_the_datasheets_or_what_was_measured() -> None:
    shown = profiled_view()
    assert shown.run is not None
    roof = roof_of(shown.run, shown.devices, shown.environment)
    assert roof is not None
    assert (roof.flops_per_s, roof.bytes_per_s) == (989e12, 4.8e12)
    assert roof.ridge == pytest.approx(989e12 / 4.8e12)
    unknown = msgspec.structs.replace(H200, peaks=Peaks())
    assert roof_of(shown.run, (unknown,), shown.environment) is None
    calibrated = msgspec.structs.replace(
        shown.environment, calibration={"gemm_bf16_flops_per_s": 7e14, "copy_bytes_per_s": 4e12}
    )
    measured = roof_of(shown.run, (unknown,), calibrated)
    assert measured == Roof(7e14, "bf16 matrix product, calibrated", 4e12, "copy, calibrated")
    summary = msgspec.structs.replace(
        shown.run.summary, flops_per_s=2e13, mfu_ratio=0.5, mfu_peak_source="measured here"
    )
    in_run = roof_of(
        msgspec.structs.replace(shown.run, summary=summary), (unknown,), shown.environment
    )
    assert in_run is not None
    assert (in_run.flops_per_s, in_run.bytes_per_s, in_run.ridge) == (4e13, None, None)


def test_without_a_peak_or_a_bandwidth_it_says_so() -> None:
    def words(roof: Roof | None) -> str:
        return " ".join(
            "".join(
                part for row in paint_roofline(GPU_PROFILE.classes, roof, 80, 20) for part, _ in row
            ).split()
        )

    assert words(None) == NO_PEAK
    flat = words(Roof(1e12, "measured", None, ""))
    assert "ridge" not in flat
    assert "bandwidth not known (gpuconsole calibrate)" in flat


def test_any_figures_fit_the_chart() -> None:
    for flops, moved, time_s in ((1.0, 1e15, 1e-9), (1e18, 1.0, 1e3), (1e12, 1e12, 1.0)):
        rows = paint_roofline([OpClass("gemm", 1.0, time_s, 1, flops, moved, time_s)], ROOF, 60, 16)
        assert {row_width(row) for row in rows} == {60}
        assert len(rows) <= 16
        assert any("G" in part and style == "title" for row in rows[2:-2] for part, style in row)
        assert math.isfinite(flops)


def test_f_opens_the_screen_takes_a_window_and_shows_it() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        api.error = "the profiler is busy"
        await pilot.press("f")
        await until(lambda: isinstance(app.screen, ProfileScreen))
        await until(lambda: ("profile",) in api.calls)
        await shows(app, "the profiler is busy")
        await shows(app, "No profile yet")
        api.error = ""
        api.shown = profiled_view(None, probing="profiler")
        await shows(app, "Profiling: the profiler records a few ordinary steps")
        api.shown = profiled_view()
        await shows(app, "roofline: 989 TFLOP/s")
        await pilot.press("f")
        await until(lambda: api.calls.count(("profile",)) == 2)
        await shows(app, "profiled 3 steps")
        await pilot.resize_terminal(80, 24)
        await shows(app, "rows 1-21")
        await pilot.press("pagedown", "escape")
        await until(lambda: "tried" in text_of(app))

    on_screen(profiled_view(None), body)


def test_a_profile_that_is_there_is_shown_and_none_is_taken() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("f")
        await shows(app, "ridge at 206 FLOP/byte")
        assert ("profile",) not in api.calls

    on_screen(profiled_view(), body)
    on_screen(profiled_view(recording=True), body)


def test_with_nothing_to_profile_it_says_what_to_do() -> None:
    assert "Nothing is running" in text(view(), 80)
    stopped = gpu_view()
    run = msgspec.structs.replace(
        stopped.runs[-1],
        state="finished",
        unavailable={"profile": "torch.profiler cannot profile here: busy"},
    )
    assert "No profile: torch.profiler cannot profile here: busy" in text(
        msgspec.structs.replace(stopped, runs=(run,)), 80
    )


@pytest.mark.parametrize(
    ("op_class", "bandwidth", "reached"),
    [
        ("elementwise", 1e10, 0.1),
        ("elementwise", None, None),
        ("gemm", None, 1e-3),
        ("gemm", 1e10, 0.1),
    ],
)
def test_the_share_of_the_peak_needs_the_peak_that_limits_a_kernel(
    op_class: str, bandwidth: float | None, reached: float | None
) -> None:
    """1 FLOP/byte at 1 GB/s. Where the bandwidth is not known, nobody knows what a kernel reaches
    that memory limits."""
    op = TopOp("kernel", op_class, 1.0, 0.1, 1, 1e9, 1e9, 1.0)  # type: ignore[arg-type]
    share = of_peak(op, Roof(1e12, "", bandwidth, ""))
    assert share == (None if reached is None else pytest.approx(reached))


def test_the_report_of_the_terminal_has_the_kernels_against_the_peaks_of_their_machine() -> None:
    shown = profiled_view()
    assert shown.run is not None
    environment = msgspec.structs.replace(shown.environment, devices=list(shown.devices))
    page = run_text(shown.run, environment).splitlines()
    reached = [
        next(line.split(" TB/s ")[1].split(" %")[0].strip() for line in page if name in line)
        for name in ("aten::addmm", "aten::gelu")
    ]
    assert reached == ["62", "81"]
    assert "of peak" not in run_text(shown.run)


def test_in_a_job_of_several_processes_the_user_chooses_one_and_asks_first() -> None:
    """The other processes wait for a window, so opening the page takes none."""
    shown = profiled_view(None)
    run = msgspec.structs.replace(
        shown.runs[-1], workload="job", knobs={**shown.runs[-1].knobs, "nproc": 3}
    )
    shown = msgspec.structs.replace(shown, runs=(*shown.runs[:-1], run))

    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("f")
        await shows(app, "Process 0 of 3 is selected")
        await shows(app, "The other processes")
        assert not any(call[0] == "profile" for call in api.calls)
        await pilot.press("left")
        await shows(app, "Process 2 of 3 is selected")
        await pilot.press("right", "right")
        await shows(app, "Process 1 of 3 is selected")
        await pilot.press("f")
        await until(lambda: ("profile", 1) in api.calls)
        report = msgspec.structs.replace(GPU_PROFILE, rank=1)
        api.shown = msgspec.structs.replace(
            shown, runs=(*shown.runs[:-1], msgspec.structs.replace(run, profile=report))
        )
        await shows(app, "process 1 of 3: 3 steps")

    on_screen(shown, body)
