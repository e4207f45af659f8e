"""Charts of the session. They are drawn when the screen opens, when it is resized, and on request."""

from __future__ import annotations

from textual.app import ComposeResult

from gpuconsole.model import units
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.metrics import series_key
from gpuconsole.report import charts
from gpuconsole.report.cells import Row, fill, line
from gpuconsole.session import facts
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.requests import Requests
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.widgets.bars import DrawnZone


class HistoryScreen(BackScreen):
    """Throughput of the current work over time above, on the clock of the main screen, the distribution of step times (or of requests' E2E) below. The charts do not follow the session."""

    NAME = "history"
    TITLE_TEXT = "History"

    def __init__(self, api: SessionApi, actions: Requests) -> None:
        super().__init__(api, actions)
        self._charts = DrawnZone(self._draw)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._charts
        yield self._key_bar

    def redraw(self) -> None:
        self._charts.repaint()

    def _draw(self, width: int, height: int) -> list[Row]:
        view = self.api.view()
        metric, unit = facts.throughput_metric(view)
        begun = facts.begun_s(view)
        points = [(t - begun, value) for t, value in zip(*self.api.points(series_key(metric, view.device)), strict=True) if t >= begun]
        times, values = [t for t, _ in points], [value for _, value in points]
        self._heading.say(f"at {units.clock(facts.clock_s(view))}; ctrl+l draws again")
        serves = view.run is not None and view.run.serves
        upper, lower = height - height // 2, height // 2
        if len(times) >= 2:
            rows = charts.throughput(times, values, _changes(view, begun), unit, width, upper)
        else:
            rows = [line(width, "No throughput measured yet.")]
        rows = fill(rows, width, upper)
        if len(view.step_times) >= 2:
            what = "E2E of {} recent requests" if serves else "step times of {} recent steps"
            return fill(rows + charts.step_times(view.step_times, width, lower, what), width, height)
        return fill([*rows, line(width, f"No {'requests' if serves else 'steps'} measured yet.")], width, height)


def _changes(view: View, begun: float) -> list[tuple[float, str]]:
    """When the settings were changed in the current work, on its clock, and to what."""
    runs = zip(view.runs, view.run_times, strict=False)
    return [(t - begun, describe_changes(run.changes) or run.scenario) for run, t in runs if t > begun]
