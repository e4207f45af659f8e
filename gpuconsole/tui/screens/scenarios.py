"""The scenario picker."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input

from gpuconsole.report import facts
from gpuconsole.report.cells import blank
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.widgets.bars import DrawnZone, KeyBar, TitleBar
from gpuconsole.tui.widgets.header import device_line
from gpuconsole.tui.widgets.scenarios import matching, paint_picker


class ScenariosScreen(BackScreen):
    """Arrows choose, Enter starts, `/` filters. `start` is given the scenario's name."""

    BINDINGS = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "start", show=False),
    ]
    OPENS: ClassVar = {"slash": "filter"}
    AUTO_FOCUS = ""

    def __init__(self, api: SessionApi, start: Callable[[str], None]) -> None:
        super().__init__(api)
        self._start = start
        self._all = api.scenarios()
        self._shown = self._all
        self._cursor = 0
        self._scale = "gpu" if facts.device(api.view()).is_gpu else "cpu"
        self._view = api.view()
        self._heading = TitleBar("Scenarios")
        self._device = DrawnZone(lambda width, height: [device_line(self._view, width), blank(width)])
        self._device.styles.height = 2
        self._zone = DrawnZone(lambda width, height: paint_picker(self._shown, self._cursor, self._scale, width, height))
        self._filter = Input(placeholder="filter", compact=True)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._device
        yield self._filter
        yield self._zone
        yield KeyBar((("up/down", "choose"), ("enter", "start"), ("/", "filter"), ("escape", "back"), ("q", "quit"), ("?", "help")))

    def on_mount(self) -> None:
        self._filter.display = False
        self.show(self.api.view())

    def show(self, view: View) -> None:
        self._view = view
        self._scale = "gpu" if facts.device(view).is_gpu else "cpu"
        self._device.repaint()
        self.action_move(0)

    def _words(self) -> str:
        """Which of how many is chosen, and where they run."""
        device, view = facts.device(self._view), self._view
        if not view.devices:
            return "looking for devices"
        at = f"{self._cursor + 1} of {len(self._shown)}; " if self._shown else ""
        if device.is_gpu:
            return f"{at}they run on {device.id} {facts.short_name(device.name)}"
        return f"{at}they run on the CPU (no GPU: {view.no_gpu_reason})"

    def action_move(self, step: int) -> None:
        self._cursor = max(0, min(len(self._shown) - 1, self._cursor + step))
        self._heading.say(self._words())
        self._zone.repaint()

    def action_start(self) -> None:
        if self._shown:
            name = self._shown[self._cursor].name
            self.dismiss()
            self._start(name)

    def action_filter(self) -> None:
        self._filter.display = True
        self.set_focus(self._filter)

    def action_back(self) -> None:
        if not self._filter.display:
            self.dismiss()
            return
        self._filter.value = ""
        self._filter.display = False
        self.set_focus(None)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._shown = matching(self._all, event.value)
        self._cursor = 0
        self.action_move(0)

    def on_input_submitted(self) -> None:
        self.action_start()
