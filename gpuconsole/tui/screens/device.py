"""Every metric of one device, with its source or the reason why there is no value; left and right choose the device."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from gpuconsole.model.text import plain
from gpuconsole.report.cells import Row, fill, line
from gpuconsole.report.machine.devices import Item, device_items, paint_item, paint_metric, paint_places, places, tally
from gpuconsole.report.page import Lines, text_lines
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.requests import Requests
from gpuconsole.tui.screens.base import ListScreen
from gpuconsole.tui.widgets.bars import DrawnZone

SECONDS_PER_COLUMN = 2.0
TALL = 20
"""From so many rows on, the history of the selected metric is drawn too."""


class DeviceScreen(ListScreen):
    """The selection keeps its metric: the same metric is selected on the next device."""

    NAME = "device"
    TITLE_TEXT = "Devices and metrics"
    FILTER = "part of a metric's name or meaning"
    DEFAULT_CSS = """
    #places { height: 2; }
    #metric { height: 4; }
    """

    def __init__(self, api: SessionApi, actions: Requests) -> None:
        super().__init__(api, actions)
        self._place = self._view.device
        self._items: list[Item] = []
        self._places = DrawnZone(lambda width, height: fill([paint_places(self._view, self._place, width)], width, height), id="places")
        self._metric = DrawnZone(self._paint_metric, id="metric")

    def above(self) -> Iterable[Widget]:
        return (self._places,)

    def below(self) -> Iterable[Widget]:
        return (self._metric,)

    def lines(self, width: int, height: int) -> Lines:
        self._items = items = device_items(self._view, self._place, self.needle, width)
        if not items:
            return text_lines([line(width, f"No metric of {self._place} has {self.needle!r} in its name or meaning; escape shows all.")])
        return Lines(
            [item.name if item.selectable else None for item in items],
            lambda n, selected: paint_item(self._view, items[n], width, selected),
        )

    def summary(self) -> str:
        device = next((device for device in self._view.devices if device.id == self._place), None)
        return "   ".join(([plain(device.name)] if device else []) + [tally(self._view, self._place)])

    def on_move(self) -> None:
        super().on_move()
        self._metric.repaint()

    def show(self, view: View) -> None:
        names = places(view)
        if self._place not in names:
            self._place = view.device if view.device in names else names[0] if names else ""
        super().show(view)
        self._metric.styles.height = 4 if self.size.height >= TALL else 2
        self._places.repaint()
        self._metric.repaint()

    def _paint_metric(self, width: int, height: int) -> list[Row]:
        item = next((item for item in self._items if item.name == self.list_zone.selected), None)
        return paint_metric(self._view, item, self._history, width, height)

    def _history(self, key: str, columns: int) -> list[float | None]:
        return self.api.history(key, columns, columns * SECONDS_PER_COLUMN)

    def _choose_device(self, step: int) -> None:
        """The next device; after the last comes the first."""
        names = places(self._view)
        if names:
            at = names.index(self._place) if self._place in names else 0
            self._place = names[(at + step) % len(names)]
            if self.list_zone.selected not in self.lines(self.size.width, self.size.height).keys:
                self.list_zone.select_first()
            self.show(self._view)

    def action_previous_device(self) -> None:
        self._choose_device(-1)

    def action_next_device(self) -> None:
        self._choose_device(1)
