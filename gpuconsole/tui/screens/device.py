"""Two screens of the hardware: everything that is known of one device, and how the devices are connected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.widget import Widget

from gpuconsole.model.machine import Device, Link
from gpuconsole.model.text import plain
from gpuconsole.report.cells import Row, fill, line
from gpuconsole.report.machine.devices import Item, device_items, paint_item, paint_metric, paint_places, places, tally
from gpuconsole.report.machine.topology import last_column, read_net, topology_lines, wants_folding
from gpuconsole.report.page import Lines, text_lines
from gpuconsole.report.screen.chart import SPARK_COLUMN_S
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.requests import Requests
from gpuconsole.tui.screens.base import FAR, ListScreen
from gpuconsole.tui.widgets.bars import DrawnZone

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
        return self.api.history(key, columns, columns * SPARK_COLUMN_S)

    def choose(self, device: str) -> None:
        """Show this device."""
        self._place = device
        self.show(self._view)

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


class TopologyScreen(ListScreen):
    """Equal GPUs are folded into groups where the matrix does not fit, until the user decides."""

    NAME = "topology"
    TITLE_TEXT = "Links"

    def __init__(self, api: SessionApi, actions: Requests) -> None:
        super().__init__(api, actions)
        self._read: tuple[Sequence[Device], Sequence[Link]] = (self._view.devices, self._view.links)
        self._net = read_net(*self._read)
        self._user_folded: bool | None = None
        self._folded = False
        self._column = self._last_column = 0

    def show(self, view: View) -> None:
        if (view.devices, view.links) != self._read:
            self._read = view.devices, view.links
            self._net = read_net(*self._read)
        super().show(view)

    def lines(self, width: int, height: int) -> Lines:
        self._folded = wants_folding(self._net, width, height) if self._user_folded is None else self._user_folded
        self._last_column = last_column(self._view, self._net, self._folded, width)
        self._column = max(0, min(self._column, self._last_column))
        return topology_lines(self._view, self._net, self._folded, self._column, width)

    def summary(self) -> str:
        if len(self._net.gpus) < 2:
            return ""
        groups = len(self._net.groups)
        what = f"{len(self._net.gpus)} GPUs" + (f" in {groups} {'group' if groups == 1 else 'groups'}" if self._folded else "")
        ways = " and ".join(way for way, more in (("down", self.list_zone.has_more), ("right", self._column < self._last_column)) if more)
        return what + (f", more {ways}" if ways else "")

    def _show_column(self, column: int) -> None:
        self._column = max(0, column)
        self.list_zone.repaint()
        self.show_summary()

    def action_left(self) -> None:
        self._show_column(self._column - 1)

    def action_right(self) -> None:
        self._show_column(self._column + 1)

    def action_first(self) -> None:
        self._show_column(0)
        self.list_zone.move(-FAR)

    def action_group(self) -> None:
        self._user_folded, self._column = not self._folded, 0
        self.list_zone.select_first()
        self.show_summary()
