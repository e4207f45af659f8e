"""The screen of a situation, drawn by the real app."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gpuconsole.tui.app import ConsoleApp
from tests.tui.fake_gpu_box import BoxSession, box, idle, shared, sick
from tests.tui.golden.situations import PRESSED, SITUATIONS, FoldedSession
from tests.waiting import until

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x50": (200, 50)}
SMALL = "60x15"
MACHINES = {
    "machine-1": box(1),
    "machine-8": box(8),
    "machine-64": box(64),
    "machine-sick": sick(),
    "machine-shared": shared(),
}
"""Machines on which nothing runs; they are drawn at SMALL too."""
ALL = [
    *((name, size) for name in [*SITUATIONS, *PRESSED, *MACHINES] for size in SIZES),
    *((name, SMALL) for name in MACHINES),
]


def path_of(name: str, size: str) -> Path:
    return Path(__file__).parent / f"{name}-{size}.txt"


def picture(name: str, size: str) -> str:
    """The cells of the screen, without the blanks at the ends of rows. Times of day are UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        found = _picture(name, SIZES.get(size, (60, 15)))
    time.tzset()
    return found


def _picture(name: str, size: tuple[int, int]) -> str:
    found = ""
    situation, pressed = PRESSED.get(name, (name, ()))
    api = (
        BoxSession(idle(MACHINES[name]))
        if name in MACHINES
        else FoldedSession(SITUATIONS[situation]())
    )

    async def main() -> None:
        nonlocal found
        app = ConsoleApp(api, refresh_hz=20.0)

        def settled() -> bool:
            nonlocal found
            before, found = found, _text(app)
            return found == before and (
                bool(pressed) or found.rstrip().splitlines()[-1].endswith("q quit")
            )

        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await pilot.press(*pressed)
            await pilot.pause()
            await until(settled, 20.0, name)

    asyncio.run(main())
    return found


def _text(app: ConsoleApp) -> str:
    width, height = app.size
    rows = app.screen._compositor.render_strips()[:height]
    return (
        "\n".join("".join(segment.text for segment in row)[:width].rstrip() for row in rows) + "\n"
    )
