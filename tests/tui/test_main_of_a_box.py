"""The main screen of a box with many GPUs: the strip of all GPUs, trouble in the title, the other
screens."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.device import TopologyScreen
from gpuconsole.tui.screens.main import MainScreen
from gpuconsole.tui.screens.processes import ProcessesScreen
from gpuconsole.tui.widgets.live import DevicesZone, FleetZone, HeaderZone
from gpuconsole.wire.events import SourceState
from tests.tui.fake_gpu_box import BoxSession, box, text
from tests.waiting import until


def rows_of(app: ConsoleApp, zone: type[FleetZone] | type[HeaderZone]) -> str:
    screen = app.screen
    assert isinstance(screen, MainScreen)
    return text(screen.query_one(zone).rows)


@pytest.mark.parametrize(
    ("gpus", "size", "rows"),
    [(8, (120, 40), 8), (64, (120, 40), 8), (64, (80, 24), 4), (2, (120, 40), 0), (8, (60, 16), 0)],
)
def test_many_gpus_have_a_strip_and_few_a_line_each(
    gpus: int, size: tuple[int, int], rows: int
) -> None:
    async def main() -> None:
        app = ConsoleApp(BoxSession(box(gpus)))
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            screen = app.screen
            assert isinstance(screen, MainScreen)
            fleet = screen.query_one(FleetZone)
            assert (fleet.size.height if fleet.display else 0) == rows
            header = rows_of(app, HeaderZone)
            assert f"{gpus}x H200" in header or size[0] < 120
            assert ("gpu:1 H200" in header) == (gpus == 2)

    asyncio.run(main())


def test_slices_are_not_counted_as_gpus() -> None:
    async def main() -> None:
        app = ConsoleApp(BoxSession(box(8, mig=(1, 2))))
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            assert "8x H200" in rows_of(app, HeaderZone)

    asyncio.run(main())


def test_a_source_that_does_not_answer_is_reported_in_the_title() -> None:
    stuck = SourceState(0.0, "nvml", 1.0, 6.2, "nvmlDeviceGetPowerUsage of gpu:3")
    shown = msgspec.structs.replace(box(8), sources={"nvml": stuck})

    async def main() -> None:
        app = ConsoleApp(BoxSession(shown))
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            assert "nvml has not answered for 6 s: nvmlDeviceGetPowerUsage of gpu:3" in rows_of(
                app, HeaderZone
            )

    asyncio.run(main())


@pytest.mark.parametrize(("key", "screen"), [("p", ProcessesScreen), ("l", TopologyScreen)])
def test_the_other_screens_are_a_key_away(key: str, screen: type) -> None:
    async def main() -> None:
        app = ConsoleApp(BoxSession(box(8)))
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press(key)
            await until(lambda: isinstance(app.screen, screen))
            await pilot.press("escape")
            await until(lambda: isinstance(app.screen, MainScreen))

    asyncio.run(main())


def test_a_device_of_which_nothing_comes_shows_no_old_figures() -> None:
    shown = box(8)
    silent = msgspec.structs.replace(shown, silent={"gpu:0": 12.0})

    async def main() -> None:
        app = ConsoleApp(BoxSession(silent))
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            assert isinstance(app.screen, MainScreen)
            title, *rows = text(app.screen.query_one(DevicesZone).rows).splitlines()
            assert "silent for 12 s" in title
            assert sum("silent for 12 s" in row for row in rows) == 6

    asyncio.run(main())
