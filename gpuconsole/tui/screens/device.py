"""Every metric of one device, with its source or the reason why there is none; left and right pick the device."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input

from gpuconsole.report.cells import Row, fill, line
from gpuconsole.report.machine.devices import Item, device_items, paint_item, paint_metric, paint_places, places, tally
from gpuconsole.report.names import plain
from gpuconsole.report.page import follow
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.widgets.bars import DrawnZone, KeyBar, TitleBar

KEYS = (
    ("left/right", "device"), ("up/down pgup/pgdn", "scroll"), ("/", "filter"), ("escape", "back"), ("q", "quit"), ("?", "help"),
)  # fmt: skip
SECONDS_PER_COLUMN = 2.0
TALL = 20
"""From so many rows on, the selected metric's past is drawn too."""


class DeviceScreen(BackScreen):
    """The selection holds on to a metric: on the next device it is the same one."""

    DEFAULT_CSS = """
    #places { height: 2; }
    #metric { height: 4; }
    """
    BINDINGS = [
        Binding("left,shift+tab", "pick(-1)", show=False),
        Binding("right,tab", "pick(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]
    OPENS: ClassVar = {"slash": "filter"}
    AUTO_FOCUS = ""

    def __init__(self, api: SessionApi) -> None:
        super().__init__(api)
        self._view = api.view()
        self._place = self._view.device
        self._needle = ""
        self._items: list[Item] = []
        self._selected = ""
        self._at = 0
        self._offset = 0
        self._heading = TitleBar("Devices and metrics")
        self._places = DrawnZone(lambda width, height: fill([paint_places(self._view, self._place, width)], width, height))
        self._places.id = "places"
        self._filter = Input(placeholder="part of a metric's name or meaning", compact=True)
        self._zone = DrawnZone(self._paint)
        self._metric = DrawnZone(self._paint_metric)
        self._metric.id = "metric"

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._places
        yield self._filter
        yield self._zone
        yield self._metric
        yield KeyBar(KEYS)

    def on_mount(self) -> None:
        self._filter.display = False
        self.show(self.api.view())

    def show(self, view: View) -> None:
        self._view = view
        known = places(view)
        if self._place not in known:
            self._place = view.device if view.device in known else known[0] if known else ""
        device = next((one for one in view.devices if one.id == self._place), None)
        words = [plain(device.name)] if device else []
        words += [tally(view, self._place), *([f"filter: {self._needle}"] if self._needle and not self._filter.display else [])]
        self._heading.say("   ".join(words))
        self._metric.styles.height = 4 if self.size.height >= TALL else 2
        for zone in (self._places, self._zone, self._metric):
            zone.repaint()

    # --- what is shown --------------------------------------------------------------------------------------

    def _paint(self, width: int, height: int) -> list[Row]:
        self._items = device_items(self._view, self._place, self._needle, width)
        if not self._items:
            return fill(
                [line(width, f"No metric of {self._place} has {self._needle!r} in its name or meaning; escape shows all.")], width, height
            )
        names = [item.name for item in self._items]
        first = next((n for n, item in enumerate(self._items) if item.metric), 0)
        self._at = names.index(self._selected) if self._selected in names else first
        if not self._selected:
            self._select(first)
        self._offset = follow(self._offset, self._at, height, len(self._items))
        if self._at <= first < height:  # nothing above it is selected: show all of that
            self._offset = 0
        shown = range(self._offset, min(self._offset + height, len(self._items)))
        return fill([paint_item(self._view, self._items[n], width, n == self._at) for n in shown], width, height)

    def _paint_metric(self, width: int, height: int) -> list[Row]:
        item = self._items[self._at] if self._at < len(self._items) else None
        return paint_metric(self._view, item, self._history, width, height)

    def _history(self, key: str, columns: int) -> list[float | None]:
        return self.api.history(key, columns, columns * SECONDS_PER_COLUMN)

    # --- keys -----------------------------------------------------------------------------------------------

    def _select(self, at: int) -> None:
        self._at = at
        self._selected = self._items[at].name

    def action_move(self, step: int) -> None:
        """To the next line that says something; headings do not."""
        lines = [n for n, item in enumerate(self._items) if item.name and not item.name.startswith(("group ", "trouble "))]
        if lines:
            at = min(range(len(lines)), key=lambda n: abs(lines[n] - self._at))
            self._select(lines[max(0, min(len(lines) - 1, at + step))])
            self._zone.repaint()
            self._metric.repaint()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self._zone.size.height - 2))

    def action_pick(self, step: int) -> None:
        """The next device; after the last comes the first."""
        known = places(self._view)
        if known:
            at = known.index(self._place) if self._place in known else 0
            self._place = known[(at + step) % len(known)]
            self.show(self._view)

    def action_filter(self) -> None:
        self._filter.display = True
        self.set_focus(self._filter)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._needle = event.value.strip()
        self._selected = ""
        self.show(self._view)

    def on_input_submitted(self) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        self._filter.display = False
        self.set_focus(None)
        self.show(self._view)

    def action_back(self) -> None:
        """Out of the filter first, then out of the screen."""
        if self._filter.display or self._needle:
            self._filter.value = ""
            self._close_filter()
        else:
            self.dismiss()

    def on_mouse_scroll_down(self) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-3)
