"""The title row and the key bar of a screen, and a page that scrolls."""

from __future__ import annotations

from collections.abc import Callable

from textual.binding import Binding

from gpuconsole.report.cells import Row, line, spread
from gpuconsole.report.page import window
from gpuconsole.tui.widgets.keys import Keys, paint_keys
from gpuconsole.tui.widgets.zone import Zone


class KeyBar(Zone):
    """The keys that work here."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._keys = keys

    def paint(self, width: int, height: int) -> list[Row]:
        return [paint_keys(self._keys, width)]


class TitleBar(Zone):
    """A screen's name, and one line about it: an error reads as one."""

    DEFAULT_CSS = "TitleBar { height: 2; }"

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._message = ""
        self._tone = "dim"

    def say(self, message: str, style: str = "dim") -> None:
        self._message, self._tone = message, style
        self.repaint()

    def paint(self, width: int, height: int) -> list[Row]:
        return [spread(width, [(self._title, "heading"), ("   ", ""), (self._message, self._tone)], []), line(width)]


class DrawnZone(Zone):
    """Draws whatever its source paints for a width and height."""

    def __init__(self, source: Callable[[int, int], list[Row]]) -> None:
        super().__init__()
        self._source = source

    def paint(self, width: int, height: int) -> list[Row]:
        return self._source(width, height)


class PageZone(Zone, can_focus=True):
    """Rows that scroll by key. `source` paints them all, for a width."""

    BINDINGS = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]

    def __init__(self, source: Callable[[int], list[Row]], moved: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._source = source
        self._moved = moved
        self._top = 0

    def paint(self, width: int, height: int) -> list[Row]:
        rows = self._source(width)
        self._top = max(0, min(self._top, len(rows) - height))
        if self._moved is not None:
            last = min(len(rows), self._top + height)
            self._moved(f"rows {self._top + 1}-{last} of {len(rows)}" if len(rows) > height else "")
        return window(rows, self._top, width, height)

    def action_move(self, rows: int) -> None:
        self._top = max(0, self._top + rows)
        self.repaint()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.size.height - 1))

    def on_mouse_scroll_down(self) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-3)
