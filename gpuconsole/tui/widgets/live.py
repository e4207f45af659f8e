"""The base of every widget that draws rows (only rows that differ are refreshed), and the zones of
the main screen: each draws one report."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import itemgetter

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gpuconsole.report.cells import Row, fill, spread, to_ascii
from gpuconsole.report.experiments import paint_done, paint_running
from gpuconsole.report.machine.fleet import paint_fleet
from gpuconsole.report.machine.tiles import paint_devices, tile_at, tiles
from gpuconsole.report.run.breakdown import paint_steps
from gpuconsole.report.run.diagnosis import paint_diagnosis, suggestion_at
from gpuconsole.report.run.runs import paint_runs
from gpuconsole.report.screen.answer import paint_answer
from gpuconsole.report.screen.chart import paint_throughput
from gpuconsole.session import facts
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui import keys
from gpuconsole.tui.theme import style_of
from gpuconsole.tui.widgets.header import paint_header
from gpuconsole.tui.widgets.layout import LayoutPlan, plan

# --- the base of every widget that draws rows -----------------------------------------------------


class Zone(Widget):
    """Subclasses paint rows; `repaint` compares them with those on the screen and refreshes what
    changed.

    The app sets `ascii_only` for terminals that are not UTF-8, and `sixteen` for terminals with
    sixteen colours. `refreshed_rows` counts, for the tests.
    """

    DEFAULT_CSS = "Zone { width: 1fr; height: 1fr; background: transparent; }"
    ascii_only = sixteen = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[Row] = []
        self._strips: dict[int, Strip] = {}
        self._styles_by_name: dict[str, Style] = {}
        self.refreshed_rows = 0

    def paint(self, width: int, height: int) -> list[Row]:
        """`height` rows of `width` cells."""
        raise NotImplementedError

    @property
    def rows(self) -> list[Row]:
        """The rows on the screen."""
        return self._rows

    def repaint(self) -> None:
        """Paint again, and refresh the rows that differ."""
        width, height = self.content_size
        if not (width and height and self.is_mounted):
            return
        rows = self.paint(width, height)
        if Zone.ascii_only:
            rows = [to_ascii(row) for row in rows]
        before, self._rows = self._rows, rows
        changed = [y for y, row in enumerate(rows) if y >= len(before) or before[y] != row]
        changed += range(len(rows), len(before))
        if not changed:
            return
        for y in changed:
            self._strips.pop(y, None)
        self.refreshed_rows += len(changed)
        self.refresh(*(Region(0, y, width, 1) for y in changed))

    def on_resize(self) -> None:
        self._strips.clear()
        self.repaint()
        self.refresh()

    def notify_style_update(self) -> None:
        self._styles_by_name.clear()
        self._strips.clear()
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        if y >= len(self._rows):
            return Strip.blank(width)
        strip = self._strips.get(y)
        if strip is None:
            # neighbours of one style are one piece, because each piece costs time
            segments = [
                Segment("".join(text for text, _ in pieces), self._named_style(name))
                for name, pieces in groupby(self._rows[y], key=itemgetter(1))
            ]
            strip = self._strips[y] = Strip(segments).adjust_cell_length(width)
        return strip

    def _named_style(self, name: str) -> Style:
        style = self._styles_by_name.get(name)
        if style is None:
            style = self._styles_by_name[name] = self.rich_style + style_of(
                name, self.app.theme, sixteen=Zone.sixteen
            )
        return style


# --- the zones of the main screen -----------------------------------------------------------------


class LiveZone(Zone):
    """A zone of the main screen. `view` is the state that it shows, `plan` the present layout."""

    def __init__(self, api: SessionApi, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._api = api
        self.view: View | None = None
        self.plan: LayoutPlan = plan(80, 24)
        self.clicked: Callable[[int], object] = lambda y: None
        """Called with the row of a click."""

    def show(self, view: View) -> None:
        self.view = view
        self.repaint()

    def on_click(self, event: events.Click) -> None:
        self.clicked(event.y)

    def paint(self, width: int, height: int) -> list[Row]:
        return self.draw(self.view, width, height) if self.view is not None else []

    def draw(self, view: View, width: int, height: int) -> list[Row]:
        raise NotImplementedError


class HeaderZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_header(view, width, height)


class AnswerZone(LiveZone):
    """`selected` is the id of the suggestion that Enter tries."""

    selected = ""

    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_answer(view, self.selected, keys.for_answer(view), width, height)


class StepsZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_steps(view, width, height)


class FleetZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_fleet(view, width, height)


class ChartZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_throughput(view, self._api.history, width, height)


class DevicesZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_devices(
            view,
            self._api.history,
            width,
            height,
            all_eight=self.plan.all_eight,
            boxed=self.plan.boxed,
        )

    def metric_at(self, y: int) -> str:
        """The metric whose history is in row `y`, or an empty text."""
        shown = tiles(self.view, self.plan.all_eight) if self.view is not None else []
        tile = tile_at(shown, len(self.rows) - 2 * self.plan.boxed, y - self.plan.boxed)
        return tile.traces[0].key.partition("{")[0] if tile is not None and tile.traces else ""


class CausesZone(LiveZone):
    """`selected` is the id of the suggestion that Enter tries."""

    selected = ""

    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_diagnosis(view, self.selected, width, height, self.plan.boxed)

    def suggestion_at(self, y: int) -> str:
        """The id of the suggestion in row `y`, or an empty text."""
        return (
            suggestion_at(self.view, self.selected, *self.content_size, self.plan.boxed, y)
            if self.view is not None
            else ""
        )


class TriedZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        return paint_runs(view, width, height, self.plan.boxed)


class RemoteZone(LiveZone):
    """What an agent on the console's socket does."""

    def draw(self, view: View, width: int, height: int) -> list[Row]:
        key = keys.written()["control"]
        return [
            spread(
                width,
                [("▌", "accent"), (view.remote, "title")],
                [(key, "key"), (" take control, or give it", "")],
            )
        ][:height]


class TrialZone(LiveZone):
    """The trial that runs, or the last trial of the present work."""

    def draw(self, view: View, width: int, height: int) -> list[Row]:
        trial = facts.shown_trial(view)
        if trial is None:
            return fill([], width, height)
        if trial.state != "running":
            return paint_done(trial, width, height)
        before = next((run.knobs for run in view.runs if run.id == trial.baseline_run), {})
        _, reported_s = view.trial_times.get(trial.id, (view.now, view.now))
        return paint_running(trial, before, width, height, max(0.0, view.now - reported_s))
