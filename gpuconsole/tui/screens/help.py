"""Keys, and how to read the screen."""

from __future__ import annotations

from gpuconsole.runtime.front import View
from gpuconsole.tui.paint.cells import Row
from gpuconsole.tui.paint.help import paint_help
from gpuconsole.tui.screens.base import PageScreen


class HelpScreen(PageScreen):
    TITLE_TEXT = "Help"

    def paint(self, view: View, width: int) -> list[Row]:
        return paint_help(width)
