"""All findings with their evidence, and what to do about them."""

from __future__ import annotations

from gpuconsole.report.cells import Row
from gpuconsole.report.run.findings import paint_details
from gpuconsole.session.api import View
from gpuconsole.tui.screens.base import PageScreen


class DetailsScreen(PageScreen):
    TITLE_TEXT = "Findings in detail"

    def paint(self, view: View, width: int) -> list[Row]:
        return paint_details(view, width)
