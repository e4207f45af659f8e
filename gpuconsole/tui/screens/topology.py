"""How the GPUs are linked."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding

from gpuconsole.model.machine.device import Device, Link
from gpuconsole.report.cells import Row
from gpuconsole.report.machine.topology import Shown, extent, paint_topology, read_net, wants_folding
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.widgets.bars import DrawnZone, KeyBar, TitleBar

KEYS = (("arrows pgup/pgdn", "scroll"), ("f", "fold or unfold"), ("escape", "back"), ("q", "quit"), ("?", "help"))


class TopologyScreen(BackScreen):
    """Folds by itself where the matrix does not fit, until `f` says otherwise."""

    BINDINGS = [
        Binding("up", "move(-1, 0)", show=False),
        Binding("down", "move(1, 0)", show=False),
        Binding("left", "move(0, -1)", show=False),
        Binding("right", "move(0, 1)", show=False),
        Binding("pageup", "move(-16, 0)", show=False),
        Binding("pagedown,space", "move(16, 0)", show=False),
        Binding("home", "move(-1000000, -1000000)", show=False),
        Binding("end", "move(1000000, 0)", show=False),
        Binding("f", "fold", show=False),
    ]
    AUTO_FOCUS = ""

    def __init__(self, api: SessionApi) -> None:
        super().__init__(api)
        self._view = api.view()
        self._read: tuple[Sequence[Device], Sequence[Link]] = (self._view.devices, self._view.links)
        self._net = read_net(*self._read)
        self._folded: bool | None = None
        self._column = self._top = 0
        self._heading = TitleBar("Topology")
        self._zone = DrawnZone(self._paint)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._zone
        yield KeyBar(KEYS)

    def on_mount(self) -> None:
        self.show(self.api.view())

    def show(self, view: View) -> None:
        self._view = view
        if (view.devices, view.links) != self._read:
            self._read = view.devices, view.links
            self._net = read_net(*self._read)
        self._zone.repaint()

    def _shown(self, width: int, height: int) -> Shown:
        folded = wants_folding(self._net, width, height) if self._folded is None else self._folded
        last_column, last_top = extent(self._view, self._net, folded, width, height)
        self._column, self._top = max(0, min(self._column, last_column)), max(0, min(self._top, last_top))
        self._heading.say(self._words(folded, last_column, last_top))
        return Shown(folded, self._column, self._top)

    def _words(self, folded: bool, last_column: int, last_top: int) -> str:
        if len(self._net.gpus) < 2:
            return ""
        groups = len(self._net.groups)
        what = f"{len(self._net.gpus)} GPUs" + (f" in {groups} {'group' if groups == 1 else 'groups'}" if folded else "")
        ways = " and ".join(way for way, more in (("down", self._top < last_top), ("right", self._column < last_column)) if more)
        return what + (f", more {ways}" if ways else "")

    def _paint(self, width: int, height: int) -> list[Row]:
        return paint_topology(self._view, self._net, self._shown(width, height), width, height)

    def action_move(self, down: int, right: int) -> None:
        self._top, self._column = max(0, self._top + down), max(0, self._column + right)
        self._zone.repaint()

    def action_fold(self) -> None:
        size = self._zone.size
        now = wants_folding(self._net, size.width, size.height) if self._folded is None else self._folded
        self._folded, self._column, self._top = not now, 0, 0
        self._zone.repaint()
