"""The output of the user's own job, as its terminal shows it."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import Input

from gpuconsole.report.cells import line, pieces
from gpuconsole.report.page import Lines
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.requests import ScreenRequests
from gpuconsole.tui.screens.base import ListScreen
from gpuconsole.tui.widgets.list import FAR

CHROME_ROWS = 3
"""Rows of the screen that are not output: the heading and the keys."""
NOTHING_PRINTED = "The job has printed nothing."
NO_MATCH = "No line of the output has these words."
NO_JOB = "No job of your own runs here: gpuconsole run -- COMMAND"


class OutputScreen(ListScreen):
    """The last lines of the output. The screen follows the output until the user scrolls up; End
    follows again."""

    NAME = "output"
    TITLE_TEXT = "Output"
    FILTER = "only lines with these words"

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__(api, actions)
        self._follows = True
        self._wrapped: tuple[tuple[object, ...], list[str]] = ((), [])
        self._typed = Input(
            placeholder="a line for the job's stdin; escape: back", compact=True, id="typed"
        )
        self._typed.display = False

    def below(self) -> Iterable[Widget]:
        yield self._typed

    def lines(self, width: int, height: int) -> Lines:
        rows = self._rows(width) or [NO_MATCH if self.needle else NOTHING_PRINTED]
        return Lines([None] * len(rows), lambda n, selected: line(width, rows[n]))

    def _rows(self, width: int) -> list[str]:
        """The output in rows of `width` cells. They are made again only when there is more
        output."""
        job = self.api.job
        source = (job.lines.version, width, self.needle) if job is not None else ()
        if job is None:
            return [NO_JOB]
        if source != self._wrapped[0]:
            needle = self.needle.lower()
            shown = (text for text in job.lines.text() if needle in text.lower())
            self._wrapped = source, [row for text in shown for row in pieces(text, width)]
        return self._wrapped[1]

    def show(self, view: View) -> None:
        super().show(view)
        if self._follows:
            self.list_zone.move(FAR)

    def on_move(self) -> None:
        self._follows = not self.list_zone.has_more
        super().on_move()

    def summary(self) -> str:
        job = self.api.job
        if job is None:
            return ""
        position = self.list_zone.position
        return "   ".join(
            part
            for part in (job.about, position, "" if self._follows else "end: follow the output")
            if part
        )

    # --- stdin ------------------------------------------------------------------------------------

    def action_type(self) -> None:
        if self.api.job is not None and not self.api.job.ended:
            self._typed.display = True
            self.set_focus(self._typed)
            self.show_keys_of("line")

    def action_back(self) -> None:
        if self._typed.display:
            self._close_typed()
        else:
            super().action_back()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is not self._typed:
            super().on_input_submitted(event)
        elif self.api.job is not None:
            self.api.job.type(f"{event.value}\n")
            self._close_typed()

    def _close_typed(self) -> None:
        self._typed.value = ""
        self._typed.display = False
        self.set_focus(None)
        self.show_keys_of(self.NAME)
