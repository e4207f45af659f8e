"""The zones of the main screen: no large blank area, no title cut, and the answer of each state."""

from __future__ import annotations

import asyncio

import pytest

from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.main import MainScreen
from tests.tui.golden.pictures import SIZES
from tests.tui.golden.situations import SITUATIONS, FoldedSession
from tests.tui.test_paint import text
from tests.waiting import until

RUNNING = [name for name in SITUATIONS if name not in ("failed", "starting")]
LEAST_ROWS = 3
"""A blank area has at least three rows: shorter gaps separate lines of text."""


def largest_blank(rows: list[str]) -> int:
    """The cells of the largest blank rectangle with at least LEAST_ROWS rows."""
    best = 0
    heights = [0] * len(rows[0])
    for row in rows:
        heights = [height + 1 if char == " " else 0 for height, char in zip(heights, row, strict=True)]
        for least in range(LEAST_ROWS, len(rows) + 1):
            run = 0
            for height in heights:
                run = run + 1 if height >= least else 0
                best = max(best, run * least)
    return best


def zones_of(name: str, size: tuple[int, int]) -> dict[str, list[str]]:
    """The text of each zone in sight."""
    found: dict[str, list[str]] = {}

    async def main() -> None:
        app = ConsoleApp(FoldedSession(SITUATIONS[name]()), refresh_hz=20.0)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            screen = app.main_screen
            await until(lambda: all(zone.rows for zone in screen.zones if zone.display), 20.0)
            assert isinstance(app.screen, MainScreen)
            found.update({str(zone.id): text(zone.rows).splitlines() for zone in screen.zones if zone.display})

    asyncio.run(main())
    return found


def test_the_largest_blank_area_is_found() -> None:
    assert largest_blank(["ab  ", "a   ", "b   ", "    "]) == 9
    assert largest_blank(["    ", "    ", "abcd"]) == 0


@pytest.mark.parametrize("name", RUNNING)
def test_no_zone_is_more_than_a_third_blank_on_a_large_terminal(name: str) -> None:
    for zone, rows in zones_of(name, SIZES["200x50"]).items():
        inner = [row[1:-1] for row in rows[1:-1]] if rows[0].startswith("╭") else rows
        blank, whole = largest_blank(inner), len(inner[0]) * len(inner)
        assert blank <= whole / 3, (zone, blank / whole)
