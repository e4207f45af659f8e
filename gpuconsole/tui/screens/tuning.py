"""The tuner at work: its tree of attempts grows while one looks."""

from __future__ import annotations

from collections.abc import Callable

from textual.binding import Binding

from gpuconsole.report.cells import Row
from gpuconsole.report.experiments.tuning import paint_tuning
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.screens.base import PageScreen


class TuningScreen(PageScreen):
    """Enter begins a session on the run that runs, x ends it; Escape leaves it at work."""

    TITLE_TEXT = "Tuning"
    KEYS = (("enter", "begin"), ("x", "end it"))
    BINDINGS = [Binding("enter", "begin", show=False), Binding("x", "end", show=False)]

    def __init__(self, api: SessionApi, begin: Callable[[], None], end: Callable[[], None]) -> None:
        super().__init__(api)
        self._begin, self._end = begin, end

    def paint(self, view: View, width: int) -> list[Row]:
        return paint_tuning(view, width)

    def action_begin(self) -> None:
        self._begin()

    def action_end(self) -> None:
        self._end()
