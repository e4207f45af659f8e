"""The main screen: device strip (and a strip of many GPUs), live tiles, the parts of a step, diagnosis, runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen

from gpuconsole.model.finding import Suggestion
from gpuconsole.report import facts
from gpuconsole.report.machine.fleet import fleet_rows
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui import keys
from gpuconsole.tui.widgets.bars import KeyBar
from gpuconsole.tui.widgets.header import header_rows
from gpuconsole.tui.widgets.layout import Plan, plan
from gpuconsole.tui.widgets.live import DiagnosisZone, FleetZone, HeaderZone, LiveZone, PhasesZone, RunsZone, TilesZone

if TYPE_CHECKING:
    from gpuconsole.tui.actions import Actions

MOST_FLEET_ROWS = 7


class MainScreen(Screen[None]):
    """Six zones and a key bar. The selection keeps its suggestion when the order of the findings changes."""

    DEFAULT_CSS = """
    MainScreen { layout: vertical; overflow: hidden; }
    #lower { width: 1fr; overflow: hidden; }
    """
    NAME = "main"
    BINDINGS = keys.screen_bindings(NAME)

    def __init__(self, api: SessionApi, actions: Actions) -> None:
        super().__init__()
        self.api = api
        self.actions = actions
        self.selected = ""
        self._plan: Plan | None = None
        self._header = HeaderZone(api, id="header")
        self._fleet = FleetZone(api, id="fleet")
        self._tiles = TilesZone(api, id="tiles")
        self._phases = PhasesZone(api, id="phases")
        self._diagnosis = DiagnosisZone(api, id="diagnosis")
        self._runs = RunsZone(api, id="runs")
        self._lower = Container(self._diagnosis, self._runs, id="lower")
        self._key_bar = KeyBar(self.NAME)

    @property
    def zones(self) -> tuple[LiveZone, ...]:
        return (self._header, self._fleet, self._tiles, self._phases, self._diagnosis, self._runs)

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._fleet
        yield self._tiles
        yield self._phases
        yield self._lower
        yield self._key_bar

    def on_mount(self) -> None:
        self.show(self.api.view())

    def on_screen_resume(self) -> None:
        self.show(self.api.view())

    def on_resize(self, event: events.Resize) -> None:
        self.show(self.api.view())

    def show(self, view: View) -> None:
        """Show a new state of the session."""
        self._lay_out(view)
        known = facts.suggestions(view)
        if self.selected not in known:
            self.selected = next(iter(known), "")
        self._diagnosis.selected = self.selected
        for zone in self.zones:
            zone.show(view)
        self._key_bar.show(view)

    def _lay_out(self, view: View) -> None:
        """Give the zones their rows, when the plan has changed."""
        new = plan(
            self.size.width,
            self.size.height,
            header_rows(view) - 1,
            fleet_rows(view, MOST_FLEET_ROWS),
            view.run is None,
            view.run is not None and view.run.serves,
        )
        if new == self._plan:
            return
        self._plan = new
        for zone in self.zones:
            zone.plan = new
        self._fleet.display = new.fleet > 0
        for zone, height in ((self._header, new.header), (self._fleet, new.fleet), (self._tiles, new.tiles), (self._phases, new.phases)):
            zone.styles.height = height
        beside = new.runs_width > 0
        self._lower.styles.layout = "horizontal" if beside else "vertical"
        self._lower.styles.height = new.diagnosis if beside else new.diagnosis + new.runs
        self._diagnosis.styles.height = new.diagnosis
        self._runs.styles.height = new.runs
        self._runs.styles.width = new.runs_width if beside else "1fr"
        self._runs.styles.padding = (0, 0, 0, 2 if beside and not new.boxed else 0)
        self._runs.display = new.runs > 0

    def _choose(self, step: int) -> None:
        known = list(facts.suggestions(self.api.view()))
        if known:
            at = known.index(self.selected) if self.selected in known else 0
            self.selected = known[max(0, min(len(known) - 1, at + step))]
            self.show(self.api.view())

    def chosen(self) -> Suggestion | None:
        """The selected suggestion."""
        found = facts.suggestions(self.api.view()).get(self.selected)
        return found[1] if found else None

    def action_choose_previous(self) -> None:
        self._choose(-1)

    def action_choose_next(self) -> None:
        self._choose(1)

    def action_probes(self) -> None:
        self.actions.probes()

    def action_numerics(self) -> None:
        self.actions.allow_numerics()

    def action_try_selected(self) -> None:
        self.actions.try_selected()
