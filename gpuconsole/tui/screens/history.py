"""Charts of the session, drawn when the screen opens, when it is resized, and on `r`."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Static

from gpuconsole.model.metrics import series_key
from gpuconsole.runtime.front import Front
from gpuconsole.tui.paint import charts, facts, format
from gpuconsole.tui.paint.cells import to_ascii
from gpuconsole.tui.screens.base import BACK, BackScreen
from gpuconsole.tui.widgets.bars import KeyBar, TitleBar
from gpuconsole.tui.widgets.zone import Zone


class HistoryScreen(BackScreen):
    """Throughput over time above, the distribution of step times below."""

    BINDINGS = [Binding("r", "draw", show=False)]
    AUTO_FOCUS = ""

    def __init__(self, front: Front) -> None:
        super().__init__(front)
        self._heading = TitleBar("History")
        self._upper = Static(markup=False)
        self._lower = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._upper
        yield self._lower
        yield KeyBar((*BACK, ("r", "draw again")))

    def on_mount(self) -> None:
        self.call_after_refresh(self.action_draw)

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.action_draw)

    def action_draw(self) -> None:
        view = self.front.view()
        metric, unit = facts.throughput_metric(view)
        times, values = self.front.points(series_key(metric, view.device))
        marks = facts.change_times(view, times[-1]) if times else []
        self._heading.say(f"as of {format.clock(view.now)} session time; r draws again")
        width, height = self._upper.size
        if len(times) >= 2:
            self._put(self._upper, charts.throughput(times, values, marks, unit, width, height))
        else:
            self._upper.update("No throughput measured yet.")
        width, height = self._lower.size
        if len(view.step_times) >= 2:
            self._put(self._lower, charts.step_times(list(view.step_times), width, height))
        else:
            self._lower.update("No steps measured yet.")

    @staticmethod
    def _put(target: Static, chart: str) -> None:
        if Zone.ascii_only:
            chart = "\n".join(text for row in chart.split("\n") for text, _ in to_ascii([(row, "")]))
        target.update(Text.from_ansi(chart, no_wrap=True))
