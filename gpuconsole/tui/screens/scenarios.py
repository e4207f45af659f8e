"""The scenario picker."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import Input

from gpuconsole.report.cells import blank, line
from gpuconsole.report.machine.columns import device_line
from gpuconsole.report.page import Lines
from gpuconsole.session import facts
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.requests import Requests
from gpuconsole.tui.screens.base import ListScreen
from gpuconsole.tui.widgets.bars import DrawnZone
from gpuconsole.tui.widgets.scenarios import matching, scenario_lines


class ScenariosScreen(ListScreen):
    """Enter starts the selected scenario, in the filter's text field too. While the picker is open, a worker is kept ready."""

    NAME = "scenarios"
    TITLE_TEXT = "Scenarios"
    FILTER = "filter"

    def __init__(self, api: SessionApi, actions: Requests) -> None:
        super().__init__(api, actions)
        self._all = {scenario.name: scenario for scenario in api.scenarios()}
        self.list_zone.select(self._proposed())
        self._device = DrawnZone(
            lambda width, height: [line(width, *device_line(self._view, facts.device(self._view), width)), blank(width)]
        )
        self._device.styles.height = 2

    def _proposed(self) -> str | None:
        """The scenario of the present run; before the first run, the first scenario of the list with a fix to prove."""
        if self._view.run is not None and self._view.run.scenario in self._all:
            return self._view.run.scenario
        return next((scenario.name for scenario in matching(list(self._all.values()), "") if scenario.teaches.fix), None)

    def on_mount(self) -> None:
        super().on_mount()
        self.actions.keep_warm(True)

    def on_unmount(self) -> None:
        self.actions.keep_warm(False)

    def above(self) -> Iterable[Widget]:
        return (self._device,)

    def lines(self, width: int, height: int) -> Lines:
        found = matching(list(self._all.values()), self.needle)
        return scenario_lines(found, facts.device(self._view), width, height, headings=not self.needle)

    def summary(self) -> str:
        """Which of how many is selected, and where scenarios run."""
        device, view = facts.device(self._view), self._view
        if not view.devices:
            return "searching for devices"
        names = [scenario.name for scenario in matching(list(self._all.values()), self.needle)]
        at = f"{names.index(str(self.list_zone.selected)) + 1} of {len(names)}; " if self.list_zone.selected in names else ""
        if device.is_gpu:
            return f"{at}they run on {device.id} {facts.short_name(device.name)}"
        return f"{at}they run on the CPU (no GPU: {view.no_gpu_reason})"

    def show(self, view: View) -> None:
        super().show(view)
        self._device.repaint()

    def on_choose(self) -> None:
        self.action_start()

    def action_start(self) -> None:
        if self.list_zone.selected is not None:
            self.dismiss()
            self.actions.start(str(self.list_zone.selected))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_start()
