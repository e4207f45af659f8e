"""The zones of the main screen. Each draws one report of the present state."""

from __future__ import annotations

from gpuconsole.report.cells import Row
from gpuconsole.report.machine.fleet import paint_fleet
from gpuconsole.report.machine.tiles import tiles
from gpuconsole.report.run.account import paint_phases
from gpuconsole.report.run.diagnosis import paint_diagnosis
from gpuconsole.report.run.runs import paint_runs
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.widgets.header import paint_header
from gpuconsole.tui.widgets.layout import Plan, plan
from gpuconsole.tui.widgets.tile import paint_tiles
from gpuconsole.tui.widgets.zone import Zone

SECONDS_PER_COLUMN = 2.0


class LiveZone(Zone):
    """A zone of the main screen. `view` is the state that it shows, `plan` the present layout."""

    def __init__(self, api: SessionApi, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._api = api
        self.view: View | None = None
        self.plan: Plan = plan(80, 24)

    def show(self, view: View) -> None:
        self.view = view
        self.repaint()

    def paint(self, width: int, height: int) -> list[Row]:
        return self.draw(self.view, width, height) if self.view is not None else []

    def draw(self, view: View, width: int, height: int) -> list[Row]:
        raise NotImplementedError


class HeaderZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_header(view, width, height)


class FleetZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_fleet(view, width, height)


class TilesZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        shown = tiles(view, self.plan.all_tiles)
        return paint_tiles(shown, self._history, width, self.plan.tiles_per_row, self.plan.tile_height)

    def _history(self, key: str, columns: int) -> list[float | None]:
        return self._api.history(key, columns, columns * SECONDS_PER_COLUMN)


class PhasesZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_phases(view, width, height, self.plan.boxed)


class DiagnosisZone(LiveZone):
    """`selected` is the id of the suggestion that Enter tries."""

    selected = ""

    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_diagnosis(view, self.selected, width, height, self.plan.boxed)


class RunsZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_runs(view, width, height, self.plan.boxed)
