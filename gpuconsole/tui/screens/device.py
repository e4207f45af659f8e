"""Two screens of the hardware: everything that is known of one device, and how the devices are
connected."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from textual.widget import Widget
from textual.widgets import Input

from gpuconsole.model.machine import Device, Link
from gpuconsole.model.text import plain
from gpuconsole.report.cells import Row, fill, line
from gpuconsole.report.machine.devices import (
    Item,
    device_items,
    paint_item,
    paint_metric,
    paint_places,
    places,
    tally,
)
from gpuconsole.report.machine.topology import last_column, read_net, topology_lines, wants_folding
from gpuconsole.report.page import Lines, text_lines
from gpuconsole.report.screen.chart import SPARK_COLUMN_S
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.requests import ScreenRequests
from gpuconsole.tui.screens.base import ListScreen
from gpuconsole.tui.widgets.bars import DrawnZone
from gpuconsole.tui.widgets.list import FAR

DIGITS_S = 1.0
"""The longest time between two digits of one number."""
TALL = 20
"""From so many rows on, the history of the selected metric is drawn too."""


class DeviceScreen(ListScreen):
    """The selection keeps its metric: the same metric is selected on the next device. A device is
    chosen by left and right, by the digits of its number, or by its name in the filter."""

    NAME = "device"
    TITLE_TEXT = "Devices and metrics"
    FILTER = "a device such as gpu:40, or part of a metric's name or meaning"
    DEFAULT_CSS = """
    #places { height: 2; }
    #metric { height: 4; }
    """

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__(api, actions)
        self._place = self._before_filter = self._view.device
        self._digits, self._digit_s = "", 0.0
        """The digits typed so far of a GPU's number, and when the last was typed."""
        self._items: list[Item] = []
        self._places = DrawnZone(
            lambda width, height: fill(
                [paint_places(self._view, self._place, width)], width, height
            ),
            id="places",
        )
        self._metric = DrawnZone(self._paint_metric, id="metric")

    def above(self) -> Iterable[Widget]:
        return (self._places,)

    def below(self) -> Iterable[Widget]:
        return (self._metric,)

    def lines(self, width: int, height: int) -> Lines:
        needle = self._metric_words
        self._items = items = device_items(self._view, self._place, needle, width)
        if not items:
            return text_lines(
                [
                    line(
                        width,
                        (
                            f"No metric of {self._place} has {needle!r} in its name or meaning;"
                            " escape shows all."
                        ),
                    )
                ]
            )
        return Lines(
            [item.name if item.selectable else None for item in items],
            lambda n, selected: paint_item(self._view, items[n], width, selected),
        )

    def summary(self) -> str:
        device = next((device for device in self._view.devices if device.id == self._place), None)
        return "   ".join(
            ([plain(device.name)] if device else []) + [tally(self._view, self._place)]
        )

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
            self._go_to(names[(at + step) % len(names)])

    def _go_to(self, place: str) -> None:
        self._place = place
        if self.list_zone.selected not in self.lines(self.size.width, self.size.height).keys:
            self.list_zone.select_first()
        self.show(self._view)

    def action_previous_device(self) -> None:
        self._choose_device(-1)

    def action_next_device(self) -> None:
        self._choose_device(1)

    def action_device_number(self, digit: str) -> None:
        """The GPU of this number; a second digit soon after the first makes a number of two."""
        now = time.monotonic()
        typed = self._digits if now - self._digit_s < DIGITS_S else ""
        names = places(self._view)
        for digits in dict.fromkeys((typed + digit, digit)):
            if f"gpu:{digits}" in names:
                self._digits, self._digit_s = digits, now
                self._go_to(f"gpu:{digits}")
                return
        # gpu:1 may be missing where gpu:10 is there
        self._digits, self._digit_s = typed + digit, now
        self.actions.report(f"there is no gpu:{typed + digit}", topic="device")

    # --- the filter -------------------------------------------------------------------------------

    @property
    def _metric_words(self) -> str:
        """The words of the filter that are no device."""
        names = places(self._view)
        return " ".join(word for word in self.needle.split() if not _named(word, names))

    async def action_filter(self) -> None:
        self._before_filter = self._place
        await super().action_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        """A word that names a device chooses it, as long as the word is there."""
        names = places(self._view)
        chosen = [word for word in event.value.split() if word in names]
        self._place = chosen[-1] if chosen else self._before_filter
        super().on_input_changed(event)

    def close_filter(self) -> None:
        """The device stays chosen, and its name leaves the filter."""
        self._before_filter = self._place
        self._filter.value = self.needle = self._metric_words
        super().close_filter()


def _named(word: str, names: Sequence[str]) -> bool:
    """Whether `word` is a device, or the beginning of one such as `gpu:` that no metric has."""
    return word in names or (":" in word and any(name.startswith(word) for name in names))


class TopologyScreen(ListScreen):
    """Equal GPUs are folded into groups where the matrix does not fit, until the user decides."""

    NAME = "topology"
    TITLE_TEXT = "Links"
    FILTER = "only rows with these words"
    SIFTED = True

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
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
        self._folded = (
            wants_folding(self._net, width, height)
            if self._user_folded is None
            else self._user_folded
        )
        self._last_column = last_column(self._view, self._net, self._folded, width)
        self._column = max(0, min(self._column, self._last_column))
        return topology_lines(self._view, self._net, self._folded, self._column, width)

    def summary(self) -> str:
        if len(self._net.gpus) < 2:
            return ""
        groups = len(self._net.groups)
        what = f"{len(self._net.gpus)} GPUs" + (
            f" in {groups} {'group' if groups == 1 else 'groups'}" if self._folded else ""
        )
        ways = " and ".join(
            way
            for way, more in (
                ("down", self.list_zone.has_more),
                ("right", self._column < self._last_column),
            )
            if more
        )
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
