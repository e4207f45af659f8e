"""The main screen: title, answer, the parts of a step, throughput, devices, causes, what was tried,
the trial."""

from __future__ import annotations

import msgspec
from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen

from gpuconsole.model.finding import Finding, Suggestion
from gpuconsole.report.experiments import trial_rows
from gpuconsole.report.machine.fleet import fleet_rows
from gpuconsole.report.run.breakdown import rows_below
from gpuconsole.report.run.diagnosis import needed_rows, opens_details
from gpuconsole.report.run.runs import tried_rows
from gpuconsole.session import facts
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui import keys
from gpuconsole.tui.requests import ScreenRequests
from gpuconsole.tui.widgets.bars import KeyBar, is_settled
from gpuconsole.tui.widgets.header import header_rows
from gpuconsole.tui.widgets.layout import LayoutNeeds, LayoutPlan, leave_room, plan
from gpuconsole.tui.widgets.list import FAR
from gpuconsole.tui.widgets.live import (
    AnswerZone,
    CausesZone,
    ChartZone,
    DevicesZone,
    FleetZone,
    HeaderZone,
    LiveZone,
    RemoteZone,
    StepsZone,
    TrialZone,
    TriedZone,
)
from gpuconsole.tui.widgets.overview import OverviewZone

MAX_FLEET_ROWS = 8


class MainScreen(Screen[None]):
    """Nine zones and a key bar. The selection keeps its suggestion when the order of the findings
    changes."""

    DEFAULT_CSS = """
    MainScreen { layout: vertical; overflow: hidden; }
    #band { width: 1fr; overflow: hidden; }
    #side { width: 1fr; overflow: hidden; layout: vertical; }
    """
    NAME = "main"
    AUTO_FOCUS = ""
    BINDINGS = keys.screen_bindings(NAME)

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__()
        self.api = api
        self.actions = actions
        self.selected = ""
        self.expects_run = False
        """Whether a run is about to start. The machine overview is shown only when no run exists
        and none is expected."""
        self._steady = Steady()
        self._plan: LayoutPlan | None = None
        self._idle: bool | None = None
        self._header = HeaderZone(api, id="header")
        self._answer = AnswerZone(api, id="answer")
        self._steps = StepsZone(api, id="steps")
        self._fleet = FleetZone(api, id="fleet")
        self._chart = ChartZone(api, id="chart")
        self._devices = DevicesZone(api, id="devices")
        self._causes = CausesZone(api, id="causes")
        self._tried = TriedZone(api, id="tried")
        self._trial = TrialZone(api, id="trial")
        self._side = Container(self._causes, self._tried, id="side")
        self._band = Container(self._devices, self._side, id="band")
        self._remote = RemoteZone(api, id="remote")
        self.overview = OverviewZone(api, actions, id="overview")
        self._key_bar = KeyBar(self.NAME)
        self._causes.clicked, self._devices.clicked = self._cause_clicked, self._device_clicked
        self._chart.clicked = lambda y: actions.open("history")

    @property
    def zones(self) -> tuple[LiveZone, ...]:
        return (
            self._header,
            self._answer,
            self._steps,
            self._fleet,
            self._chart,
            self._devices,
            self._causes,
            self._tried,
            self._trial,
        )

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._answer
        yield self._steps
        yield self._fleet
        yield self._chart
        yield self._band
        yield self._trial
        yield self.overview
        yield self._remote
        yield self._key_bar

    def on_mount(self) -> None:
        self.show(self.api.view())

    def on_screen_resume(self) -> None:
        self.show(self.api.view())

    def on_resize(self, event: events.Resize) -> None:
        self.show(self.api.view())

    def show(self, view: View) -> None:
        """Show a new state of the session."""
        view = self._steady.of(view)
        self._lay_out(view)
        suggestions = facts.suggestions(view)
        if self.selected not in suggestions:
            self.selected = next(iter(suggestions), "")
        self._answer.selected = self._causes.selected = self.selected
        for zone in self.zones:
            if zone.display:
                zone.show(view)
        self.overview.brief = is_settled(self.app, view)
        for zone in (self.overview, self._remote):
            if zone.display:
                zone.show(view)
        self._key_bar.show(view)

    def _lay_out(self, view: View) -> None:
        """Give the zones their rows, when the plan has changed. Without a run, the overview takes
        the room of all zones but the header."""
        self._remote.display, self._remote.styles.height = bool(view.remote), 1
        idle = view.run is None and not self.expects_run
        if idle != self._idle:
            self._idle, self._plan = idle, None
            self.overview.display, self._band.display = idle, not idle
            has_cursor = idle and not view.recording  # in a replay these keys move in time
            # the keys of the overview go to it
            self.set_focus(self.overview if has_cursor else None)
            self._key_bar.screen_name = OverviewZone.NAME if has_cursor else self.NAME
        if idle:
            for zone in self.zones:
                zone.display = zone is self._header
            self._header.styles.height = 1
            return
        needs = LayoutNeeds(
            header=header_rows(view) - 1,
            fleet=fleet_rows(view, MAX_FLEET_ROWS),
            causes=needed_rows(view),
            tried=tried_rows(view),
            idle=view.run is None,
            legend=1 if view.run is not None and view.run.serves else 2,
            below=0 if view.run is None else rows_below(view.run),
            trial=trial_rows(facts.shown_trial(view)),
        )
        new = plan(
            self.size.width,
            self.size.height + 1 - self._key_bar.rows_for(view) - bool(view.remote),
            needs,
        )
        new = leave_room(new, self._key_bar.extra_rows(view))
        if new == self._plan:
            return
        self._plan = new
        for zone in self.zones:
            zone.plan = new
        heights = (
            new.header,
            new.answer,
            new.steps,
            new.fleet,
            new.chart,
            new.devices,
            new.causes,
            new.tried,
            new.trial,
        )
        for zone, height in zip(self.zones, heights, strict=True):
            zone.display = height > 0
            zone.styles.height = height
        beside = new.side > 0
        self._band.styles.layout = "horizontal" if beside else "vertical"
        self._band.styles.height = new.devices if beside else new.devices + new.causes + new.tried
        self._side.styles.width = new.side if beside else "1fr"
        self._side.styles.height = new.causes + new.tried

    def _choose(self, step: int) -> None:
        suggestions = list(facts.suggestions(self._steady.of(self.api.view())))
        if suggestions:
            at = suggestions.index(self.selected) if self.selected in suggestions else 0
            self.selected = suggestions[max(0, min(len(suggestions) - 1, at + step))]
            self.show(self.api.view())

    def chosen(self) -> Suggestion | None:
        """The selected suggestion."""
        finding_and_suggestion = facts.suggestions(self._steady.of(self.api.view())).get(
            self.selected
        )
        return finding_and_suggestion[1] if finding_and_suggestion else None

    def _cause_clicked(self, y: int) -> None:
        """Select the suggestion in row `y`. A row of passed checks opens the details instead."""
        if y < len(self._causes.rows) and opens_details(self._causes.rows[y]):
            self.actions.open("details")
            return
        self.selected = self._causes.suggestion_at(y) or self.selected
        self.show(self.api.view())

    def _device_clicked(self, y: int) -> None:
        """Open the history of the metric in row `y`."""
        metric = self._devices.metric_at(y)
        if metric.startswith("workload."):
            self.actions.open("history")
        elif metric:
            self.actions.open_metric(metric)

    def action_choose_previous(self) -> None:
        self._choose(-1)

    def action_choose_next(self) -> None:
        self._choose(1)

    def action_choose_first(self) -> None:
        self._choose(-FAR)

    def action_choose_last(self) -> None:
        self._choose(FAR)

    def action_probes(self) -> None:
        self.actions.probes()

    def action_numerics(self) -> None:
        self.actions.permit()

    def action_cancel_trial(self) -> None:
        self.actions.cancel_trial()

    def action_try_selected(self) -> None:
        self.actions.try_selected()


# --- holds an advice for some seconds -------------------------------------------------------------
# An estimate near a limit would change it back and forth, and Enter would try what nobody has read.

HOLD_S = 4.0
"""Seconds that another advice must last before it takes the place of the one in sight."""
Advice = tuple[tuple[tuple[str, object], ...], ...]


class Steady:
    """Gives views in which the suggestions of a finding, and with them the whole finding, change
    only if the new ones last. What was measured, and a change of the settings, counts at once."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], Finding] = {}
        self._other: dict[tuple[str, str], tuple[Advice, float]] = {}

    def of(self, view: View) -> View:
        """The view with the findings to show."""
        run = view.run
        if run is None:
            return view
        findings = [self._held(view, run.id, finding) for finding in run.findings]
        if all(held is finding for held, finding in zip(findings, run.findings, strict=True)):
            return view
        return msgspec.structs.replace(
            view, runs=(*view.runs[:-1], msgspec.structs.replace(run, findings=findings))
        )

    def _held(self, view: View, run: str, finding: Finding) -> Finding:
        key, advice = (run, finding.rule), _advice(finding)
        shown = self._shown.get(key)
        if (
            shown is None
            or finding.state != "fires"
            or advice == _advice(shown)
            or not _still_holds(view, shown, finding)
        ):
            return self._show(key, finding)
        other, since_s = self._other.get(key, ((), view.now))
        if other != advice or since_s > view.now:
            self._other[key] = advice, view.now
            return shown
        return self._show(key, finding) if view.now - since_s >= HOLD_S else shown

    def _show(self, key: tuple[str, str], finding: Finding) -> Finding:
        self._shown[key] = finding
        self._other.pop(key, None)
        return finding


def _advice(finding: Finding) -> Advice:
    return tuple(tuple(sorted(suggestion.changes.items())) for suggestion in finding.suggestions)


def _still_holds(view: View, shown: Finding, finding: Finding) -> bool:
    """Whether the finding in sight is still one that can be shown: it fired, nothing was measured
    since, and its changes can be tried where they could."""
    measured = {suggestion.tried for suggestion in finding.suggestions} - {
        suggestion.tried for suggestion in shown.suggestions
    }
    possible = all(facts.can_try(view.run, suggestion) for suggestion in shown.suggestions)
    return (
        shown.state == "fires"
        and not measured
        and (possible or not any(facts.can_try(view.run, one) for one in finding.suggestions))
    )
