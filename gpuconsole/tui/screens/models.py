"""The analytical models beside the measurement, and the processes of the run."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding

from gpuconsole.report.run.models import entries, paint_models, summary
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.screens.base import BACK, BackScreen
from gpuconsole.tui.widgets.bars import DrawnZone, KeyBar, TitleBar


class ModelsScreen(BackScreen):
    """Arrows choose a row; what is behind it, formula and source, stands under the table."""

    BINDINGS = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown,space", "move(10)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]
    AUTO_FOCUS = ""

    def __init__(self, api: SessionApi) -> None:
        super().__init__(api)
        self._view = api.view()
        self._cursor = 0
        self._heading = TitleBar("Models and measurement")
        self._zone = DrawnZone(lambda width, height: paint_models(self._view, self._cursor, width, height))

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._zone
        yield KeyBar((("up/down", "choose"), *BACK, ("?", "help")))

    def on_mount(self) -> None:
        self.show(self.api.view())

    def show(self, view: View) -> None:
        self._view = view
        self._heading.say(summary(view.run))
        self.action_move(0)

    def action_move(self, step: int) -> None:
        self._cursor = max(0, min(len(entries(self._view.run)) - 1, self._cursor + step))
        self._zone.repaint()
