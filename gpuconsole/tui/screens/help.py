"""Keys, and how to read the screen."""

from __future__ import annotations

from gpuconsole.report.cells import Row
from gpuconsole.session.api import View
from gpuconsole.tui.screens.base import PageScreen
from gpuconsole.tui.widgets.help import paint_help


class HelpScreen(PageScreen):
    TITLE_TEXT = "Help"

    def paint(self, view: View, width: int) -> list[Row]:
        return paint_help(width)
