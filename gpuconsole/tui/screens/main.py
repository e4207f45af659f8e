"""The main screen: device strip (and a strip of many GPUs), live tiles, where a step goes, diagnosis, runs."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.screen import Screen

from gpuconsole.model.finding import Interval, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.report import facts
from gpuconsole.report.machine.fleet import fleet_rows
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.widgets.bars import KeyBar
from gpuconsole.tui.widgets.header import header_rows
from gpuconsole.tui.widgets.keys import MAIN
from gpuconsole.tui.widgets.layout import Plan, plan
from gpuconsole.tui.widgets.live import DiagnosisZone, FleetZone, HeaderZone, LiveZone, PhasesZone, RunsZone, TilesZone

MOST_FLEET_ROWS = 7


class MainScreen(Screen[None]):
    """Six zones and a key bar. Enter means what the selected suggestion says, however the list has moved since."""

    DEFAULT_CSS = """
    MainScreen { layout: vertical; overflow: hidden; }
    #lower { width: 1fr; overflow: hidden; }
    """
    BINDINGS = [
        Binding("up", "select(-1)", show=False),
        Binding("down", "select(1)", show=False),
        Binding("enter", "try_selected", "Try the suggestion", show=False),
        Binding("t", "app.open('tuning')", show=False),
        Binding("u", "app.revert", show=False),
        Binding("x", "app.stop", show=False),
        Binding("b", "app.keep_baseline", show=False),
        Binding("r", "app.record", show=False),
        Binding("e", "app.export", show=False),
        Binding("s", "app.open('scenarios')", show=False),
        Binding("k", "app.open('knobs')", show=False),
        Binding("d", "app.open('details')", show=False),
        Binding("h", "app.open('history')", show=False),
        Binding("m", "app.open('models')", show=False),
        Binding("f", "app.open('profile')", show=False),
        Binding("i", "app.open('device')", show=False),
        Binding("p", "app.open('processes')", show=False),
        Binding("l", "app.open('topology')", show=False),
    ]

    def __init__(self, api: SessionApi, try_change: Callable[[Knobs, Interval | None], None]) -> None:
        super().__init__()
        self.api = api
        self._try = try_change
        self.selected = ""
        self._plan: Plan | None = None
        self._header = HeaderZone(api, id="header")
        self._fleet = FleetZone(api, id="fleet")
        self._tiles = TilesZone(api, id="tiles")
        self._phases = PhasesZone(api, id="phases")
        self._diagnosis = DiagnosisZone(api, id="diagnosis")
        self._runs = RunsZone(api, id="runs")
        self._lower = Container(self._diagnosis, self._runs, id="lower")

    @property
    def zones(self) -> tuple[LiveZone, ...]:
        return (self._header, self._fleet, self._tiles, self._phases, self._diagnosis, self._runs)

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._fleet
        yield self._tiles
        yield self._phases
        yield self._lower
        yield KeyBar(MAIN)

    def on_mount(self) -> None:
        self.show(self.api.view())

    def on_screen_resume(self) -> None:
        self.show(self.api.view())

    def on_resize(self, event: events.Resize) -> None:
        self.show(self.api.view())

    def show(self, view: View) -> None:
        """A new picture of the session."""
        self._lay_out(view)
        known = facts.suggestions(view)
        if self.selected not in known:
            self.selected = next(iter(known), "")
        self._diagnosis.selected = self.selected
        for zone in self.zones:
            zone.show(view)

    def _lay_out(self, view: View) -> None:
        """Give the zones their rows, when the plan is another."""
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

    def action_select(self, step: int) -> None:
        known = list(facts.suggestions(self.api.view()))
        if known:
            at = known.index(self.selected) if self.selected in known else 0
            self.selected = known[max(0, min(len(known) - 1, at + step))]
            self.show(self.api.view())

    def chosen(self) -> Suggestion | None:
        """The suggestion that Enter would try."""
        found = facts.suggestions(self.api.view()).get(self.selected)
        return found[1] if found else None

    def action_try_selected(self) -> None:
        suggestion = self.chosen()
        if suggestion is None:
            self.app.notify("there is no suggestion to try", markup=False)
        else:
            self._try(suggestion.changes, suggestion.predicted_speedup)
