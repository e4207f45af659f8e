"""Charts of the session, drawn when the screen opens, when it is resized, and on `r`."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding

from gpuconsole.model.metrics.catalogue import series_key
from gpuconsole.report import charts, facts
from gpuconsole.report import units as format
from gpuconsole.report.cells import Row, fill, line
from gpuconsole.session.api import SessionApi
from gpuconsole.tui.screens.base import BACK, BackScreen
from gpuconsole.tui.widgets.bars import DrawnZone, KeyBar, TitleBar


class HistoryScreen(BackScreen):
    """Throughput over time above, the distribution of step times (or of requests' E2E) below. Does not follow the session by itself."""

    BINDINGS = [Binding("r", "draw", show=False)]
    AUTO_FOCUS = ""

    def __init__(self, api: SessionApi) -> None:
        super().__init__(api)
        self._heading = TitleBar("History")
        self._charts = DrawnZone(self._draw)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._charts
        yield KeyBar((*BACK, ("r", "draw again")))

    def action_draw(self) -> None:
        self._charts.repaint()

    def _draw(self, width: int, height: int) -> list[Row]:
        view = self.api.view()
        metric, unit = facts.throughput_metric(view)
        times, values = self.api.points(series_key(metric, view.device))
        self._heading.say(f"at {format.clock(view.now)} of the session; r draws again")
        serves = view.run is not None and view.run.serves
        upper, lower = height - height // 2, height // 2
        if len(times) >= 2:
            rows = charts.throughput(times, values, facts.change_times(view, times[-1]), unit, width, upper)
        else:
            rows = [line(width, "No throughput measured yet.")]
        rows = fill(rows, width, upper)
        if len(view.step_times) >= 2:
            what = "E2E of {} recent requests" if serves else "step times of {} recent steps"
            return fill(rows + charts.step_times(view.step_times, width, lower, what), width, height)
        return fill([*rows, line(width, f"No {'requests' if serves else 'steps'} measured yet.")], width, height)
