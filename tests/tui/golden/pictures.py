"""The main screen of a situation, drawn by the real app."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpuconsole.tui.app import ConsoleApp
from tests.tui.golden.situations import SITUATIONS, FoldedSession
from tests.waiting import until

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x50": (200, 50)}
ALL = [(name, size) for name in SITUATIONS for size in SIZES]


def path_of(name: str, size: str) -> Path:
    return Path(__file__).parent / f"{name}-{size}.txt"


def picture(name: str, size: tuple[int, int]) -> str:
    """The cells of the screen, without the blanks at the ends of rows."""
    found = ""

    async def main() -> None:
        nonlocal found
        app = ConsoleApp(FoldedSession(SITUATIONS[name]()), refresh_hz=20.0)

        def settled() -> bool:
            nonlocal found
            before, found = found, _text(app)
            return found == before and found.rstrip().splitlines()[-1].endswith("q quit")

        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await until(settled, 20.0, name)

    asyncio.run(main())
    return found


def _text(app: ConsoleApp) -> str:
    width, height = app.size
    rows = app.screen._compositor.render_strips()[:height]
    return "\n".join("".join(segment.text for segment in row)[:width].rstrip() for row in rows) + "\n"
