"""How the GPUs are linked."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model.machine import Device, Link
from gpuconsole.report.machine.topology import last_column, read_net, topology_lines, wants_folding
from gpuconsole.report.page import Lines
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.requests import Requests
from gpuconsole.tui.screens.base import FAR, ListScreen


class TopologyScreen(ListScreen):
    """Equal GPUs are folded into groups where the matrix does not fit, until the user decides."""

    NAME = "topology"
    TITLE_TEXT = "Topology"

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
