"""The device screen: all metrics of one device, with units, sources and ages, or the reason why
there is none."""

from __future__ import annotations

import msgspec
import pytest
from textual.pilot import Pilot

from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import GPU_METRICS, series_key
from gpuconsole.report.cells import Row
from gpuconsole.report.machine.devices import (
    device_items,
    paint_item,
    paint_metric,
    paint_places,
    places,
)
from gpuconsole.session.api import View
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens import device
from gpuconsole.tui.screens.device import DeviceScreen
from tests.tui.fake_gpu_box import (
    HOSTILE,
    BoxSession,
    assert_exact,
    box,
    on_box,
    paint_devices,
    sick,
    text,
)
from tests.tui.fake_session import FakeSession, cpu_view, gpu_view, view
from tests.tui.test_app import shows, text_of
from tests.waiting import until

BOX = box(8, lost=(3,), stuck=(5,), mig=(6,))
WHOLE = 250
"""Columns in which nothing is cut."""


def row_of(shown: View, metric: str, place: str = "gpu:0", width: int = WHOLE) -> Row:
    item = next(item for item in device_items(shown, place, "", width) if item.name == metric)
    return paint_item(shown, item, width, False)


@pytest.mark.parametrize(
    "shown",
    [BOX, box(64), gpu_view(), cpu_view(), view(devices=())],
    ids=["8", "64", "gpu", "cpu", "none"],
)
def test_rows_are_as_wide_as_asked(shown: View) -> None:
    api = FakeSession(shown)
    some = [
        name
        for name in places(shown)
        if name in ("gpu:0", "gpu:3", "gpu:5", "gpu:6/mig:2", "cpu", "console")
    ]
    for width in (8, 23, 40, 59, 80, 97, 120, 200):
        for place in some:
            assert_exact([paint_places(shown, place, width)], width)
            for needle in ("", "hbm", "nothing has this"):
                items = device_items(shown, place, needle, width)
                assert_exact(
                    [paint_item(shown, item, width, n % 9 == 0) for n, item in enumerate(items)],
                    width,
                )
            for height in (0, 1, 2, 4):
                item = next((item for item in items if item.metric), None)
                assert_exact(
                    paint_metric(
                        shown,
                        item,
                        lambda key, columns: api.history(key, columns, 60.0),
                        width,
                        height,
                    ),
                    width,
                    height,
                )


def test_every_metric_is_there_once_with_its_unit_or_its_reason() -> None:
    rows = text(paint_devices(BOX, WHOLE)).split("\n")
    for metric in GPU_METRICS:
        mine = [row for row in rows if row.split()[:1] == [metric.name]]
        assert len(mine) == 1, metric.name
        key = series_key(metric.name, "gpu:0")
        assert BOX.unavailable.get(key, metric.meaning) in mine[0]
        assert ("n/a" in mine[0]) == (key in BOX.unavailable)
    order = [
        row
        for row in rows
        if row.strip()
        in ("activity", "memory", "power and clocks", "clock limits", "links", "health")
    ]
    assert [row.strip() for row in order] == [
        "activity",
        "memory",
        "power and clocks",
        "clock limits",
        "links",
        "health",
    ]


def test_numbers_and_units_stand_in_columns() -> None:
    rows = text(paint_devices(BOX, 80)).split("\n")
    ends = {
        row.index(unit)
        for row in rows
        for name, unit in (
            ("gpu.power_w", " W "),
            ("gpu.hbm_used", " GiB"),
            ("gpu.sm_clock_hz", " GHz"),
            ("gpu.sm_active", " % "),
        )
        if row.strip().startswith(name)
    }
    assert len(ends) == 1


def test_ages_are_told_when_they_matter() -> None:
    assert "1m01s" in text([row_of(BOX, "gpu.power_w", "gpu:5")])
    assert "1m01s" not in text([row_of(BOX, "gpu.power_w")])
    item = next(item for item in device_items(BOX, "gpu:5", "", 80) if item.name == "gpu.power_w")
    assert "1m01s ago" in text(
        paint_metric(BOX, item, lambda key, columns: [None] * columns, 80, 4)
    )


def test_the_source_is_the_one_that_the_value_came_from() -> None:
    key = series_key("gpu.sm_active_ratio", "gpu:0")
    assert "nvml.gpm" in text([row_of(BOX, "gpu.sm_active_ratio")])
    assert "dcgm" in text(
        [row_of(msgspec.structs.replace(BOX, substitutes={key: "dcgm"}), "gpu.sm_active_ratio")]
    )


def test_red_is_for_what_needs_action() -> None:
    shown = msgspec.structs.replace(
        BOX,
        latest={
            **BOX.latest,
            series_key("gpu.ecc_uncorrected", "gpu:0"): 2.0,
            series_key("gpu.link_up", "gpu:0/link:4"): 0.0,
        },
    )
    assert (
        "alert" in [style for _, style in row_of(shown, "gpu.ecc_uncorrected")]
    ) and "alert" not in [style for _, style in row_of(BOX, "gpu.ecc_uncorrected")]
    red = [row for row in paint_devices(shown, 120) if any(style == "alert" for _, style in row)]
    assert any(text([row]).split()[:2] == ["link:4", "no"] for row in red)


def test_trouble_comes_first() -> None:
    assert "gpu:3 is lost: fell off the bus" in text(paint_devices(BOX, 120, "gpu:3")[:1])
    assert "source nvml has not answered for 1m01s: gpu:5: nvmlDeviceGetPowerUsage" in text(
        paint_devices(BOX, 120)[:1]
    )
    assert "no NVIDIA GPU: no NVIDIA driver" in text(paint_devices(view(), 120)[:1])
    lost = text(paint_devices(BOX, 120, "gpu:3"))
    assert "device lost: fell off the bus" in lost and " % " not in lost


def test_a_source_that_opens_is_not_called_stuck() -> None:
    opening = msgspec.structs.replace(BOX.sources["nvml"], opening=True, stuck_s=4.0, detail="")
    whole = paint_devices(msgspec.structs.replace(BOX, sources={"nvml": opening}, lost={}), 120)
    assert "source nvml has been opening for 4s" in text(whole) and "stuck" not in text(whole)
    assert not any(style == "alert" for row in whole for _, style in row)


def test_tables_of_links_and_cores() -> None:
    whole = text(paint_devices(BOX, 120))
    assert (
        sum(
            row.split()[1:2] == ["yes"] and row.split()[0].startswith("link:")
            for row in whole.split("\n")
        )
        == 18
    )
    host = text(paint_devices(BOX, 120, "cpu"))
    assert "cores 0-15" in host and "cores 80-95" in host
    assert "NVLink " not in host


def test_facts_and_sources_are_told() -> None:
    whole = text(paint_devices(BOX, 120))
    for expected in (
        "PCI address",
        "00000000:17:00.0",
        "NUMA node",
        "0-95",
        "bf16 989 TFLOP/s",
        "stuck for 1m01s",
        "3 rounds missed",
        "read every 1 s",
    ):
        assert expected in whole, expected


def test_places_in_order_and_the_chosen_one_in_sight() -> None:
    assert places(BOX) == [
        *(f"gpu:{n}" for n in range(7)),
        *(f"gpu:6/mig:{n}" for n in range(7)),
        "gpu:7",
        "cpu",
        "console",
    ]
    assert "console.cpu_ratio" in text(paint_devices(BOX, 120, "console")) and "sampler" in text(
        paint_devices(BOX, 120, "console")
    )
    for width in (40, 80, 120):
        for place in places(box(64)):
            row = (
                paint_places(box(64), place, width)
                if place in ("gpu:0", "gpu:31", "gpu:63", "cpu", "console")
                else [(f" {place} ", "mark")]
            )
            assert (f" {place} ", "mark") in row


def test_filter_is_by_name_or_meaning() -> None:
    for needle in ("throt", "throttle"):
        found = [
            item.metric.name for item in device_items(BOX, "gpu:0", needle, 120) if item.metric
        ]
        assert {"gpu.clocks_hw_thermal", "gpu.clocks_power_cap", "gpu.thermal_time_ratio"} <= set(
            found
        ) and "gpu.sm_clock_hz" not in found
    assert not [
        item for item in device_items(BOX, "gpu:0", "throttle memory_total", 120) if item.metric
    ]
    found = [
        item.metric.name for item in device_items(BOX, "gpu:0", "heat CLOCKS", 120) if item.metric
    ]
    assert "gpu.hw_thermal_time_ratio" in found and "gpu.power_w" not in found
    assert text(paint_devices(BOX, 120, "gpu:0", "sm_active")).split()[:2] == [
        "activity",
        "gpu.sm_active_ratio",
    ]


def test_only_the_chosen_device_is_looked_at() -> None:
    class Watched(dict[str, float]):
        asked: set[str] = set()

        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            self.asked.add(key)
            return super().get(key, default)

        def __contains__(self, key: object) -> bool:
            self.asked.add(str(key))
            return super().__contains__(key)

        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("all series were walked through")

    shown = msgspec.structs.replace(box(64), latest=Watched(box(64).latest))
    paint_devices(shown, 120, "gpu:7")
    others = {key.partition("{device=")[2].removesuffix("}") for key in Watched.asked} - {
        "console",
        "sampler",
    }
    assert {device.partition("/")[0] for device in others} == {"gpu:7"}


def test_names_that_mean_harm() -> None:
    hostile = Device(
        "gpu:0",
        HOSTILE,
        1,
        HOSTILE,
        pcie=HOSTILE,
        nvlink=HOSTILE,
        facts={HOSTILE: HOSTILE, "pci": HOSTILE},
    )
    shown = msgspec.structs.replace(
        BOX,
        devices=(hostile,),
        lost={"gpu:0": HOSTILE},
        unavailable={series_key("gpu.power_w", "gpu:0"): HOSTILE},
    )
    assert_exact(paint_devices(shown, 100), 100)


# --- the screen -----------------------------------------------------------------------------------


def test_left_and_right_pick_the_device_and_keep_the_metric() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await shows(app, "gpu.sm_active_ratio: Share of time")
        await pilot.press("down", "down", "right", "tab")
        await shows(app, " gpu:2 ")
        await shows(app, "gpu.tensor_active_ratio: Share of peak")
        await pilot.press("shift+tab", "left", "left")
        await shows(app, "console.cpu_ratio: ")
        await pilot.press("right", "right", "right", "right")
        await shows(app, "lost: fell off the bus")
        await pilot.press("escape")
        await until(lambda: not isinstance(app.screen, DeviceScreen))

    on_box(BOX, DeviceScreen, body)


def test_filter_then_escape_clears_it_before_it_leaves() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("slash", *"ecc c", "enter")
        await shows(app, "filter: ecc c")
        assert "gpu.sm_active_ratio" not in text_of(
            app
        ) and "gpu.ecc_corrected_lifetime" in text_of(app)
        await pilot.press("right")
        await shows(app, "filter: ecc c")
        await pilot.press("slash", *"zz")
        await shows(app, "escape shows all")
        await pilot.press("escape")
        await shows(app, "gpu.sm_active_ratio")
        assert isinstance(app.screen, DeviceScreen)
        await pilot.press("escape")
        await until(lambda: not isinstance(app.screen, DeviceScreen))

    on_box(box(8), DeviceScreen, body, (80, 24))


def test_everything_can_be_scrolled_to() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await shows(app, "source nvml has not answered")
        await pilot.press("end")
        await shows(app, "stuck for 1m01s")
        await pilot.press("pageup", "home")
        await shows(app, "source nvml has not answered")
        await shows(app, "gpu.sm_active_ratio")

    for size in ((120, 40), (80, 24), (60, 16)):
        on_box(BOX, DeviceScreen, body, size)


def test_a_device_that_goes_is_left() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("right")
        await shows(app, " gpu:1 ")
        api.shown = cpu_view()
        await shows(app, "host.cores_busy")
        api.shown = view(devices=())
        await pilot.press("right", "end", "pageup", "home", "slash", "x", "escape")
        await pilot.pause()

    on_box(box(8), DeviceScreen, body)


def shown_place(app: ConsoleApp) -> str:
    screen = app.screen
    assert isinstance(screen, DeviceScreen)
    return screen._place


def test_digits_choose_a_gpu() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await shows(app, "0-9 number")
        # which digit is not said
        await pilot.click(
            offset=(text_of(app).splitlines()[-1].index("0-9") + 1, app.size.height - 1)
        )
        await pilot.press("4", "0")
        await shows(app, " gpu:40 ")
        assert shown_place(app) == "gpu:40"
        await pilot.press("7")  # there is no gpu:407
        await until(lambda: shown_place(app) == "gpu:7")
        await pilot.press("7")  # nor a gpu:77
        await pilot.press("left")
        await until(lambda: shown_place(app) == "gpu:6")

    on_box(box(64), DeviceScreen, body)


def test_digits_of_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "DIGITS_S", 0.0)

    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("1", "0")  # too slow for a number of two digits
        await until(lambda: shown_place(app) == "gpu:0")
        await pilot.press("9")
        await shows(app, "there is no gpu:9")
        assert shown_place(app) == "gpu:0"

    on_box(box(8), DeviceScreen, body)


def test_the_filter_finds_a_device_by_its_name() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("slash", *"gpu:4")
        await until(lambda: shown_place(app) == "gpu:4")
        await pilot.press("0")
        await until(lambda: shown_place(app) == "gpu:40")
        await shows(app, "gpu.sm_active_ratio")
        await pilot.press("space", *"power")
        await until(
            lambda: "gpu.sm_active_ratio" not in text_of(app) and "gpu.power_w" in text_of(app)
        )
        await pilot.press("enter")
        await shows(app, "filter: power")
        await pilot.press("right")
        await until(lambda: shown_place(app) == "gpu:41")
        await pilot.press("slash", "end", "s")  # the name of gpu:40 is no longer in the field
        await shows(app, "No metric of gpu:41 has 'powers'")
        # no device: the one before the filter
        await pilot.press(*(["backspace"] * 6), *"gpu:5", "backspace", "backspace", "x")
        await until(lambda: shown_place(app) == "gpu:41")
        await pilot.press("escape")
        await shows(app, "gpu.sm_active_ratio")
        assert shown_place(app) == "gpu:41"

    on_box(box(64), DeviceScreen, body)


def test_the_page_of_a_sick_or_slow_gpu_begins_with_the_reason() -> None:
    hot = text(paint_devices(sick(), 120, "gpu:1")[:1])
    assert "gpu:1" in hot and "sick: heat slowdown" in hot
    call = "nvmlDeviceGetNvLinkState has not returned for 12 s"
    hung = msgspec.structs.replace(BOX, silent={"gpu:2": 12.0}, slow={"gpu:2": call})
    assert f"gpu:2: silent for 12 s: {call}" in text(paint_devices(hung, 120, "gpu:2")[:1])
