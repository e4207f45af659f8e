"""The title row and the key bar of a screen, and a zone that a function paints."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuconsole.report.cells import Row, Segment, cell_width, line, spread
from gpuconsole.report.guide import STEPS, guide
from gpuconsole.session.api import View
from gpuconsole.tui import keys
from gpuconsole.tui.widgets.zone import Zone

GUIDED = ("main", "scenarios")
"""The screens with a hint line during the first steps of a session."""


class KeyBar(Zone):
    """The keys of a screen that make sense now. `screen` is its name in `keys.ACTIONS`. During the first steps a hint stands above the keys."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    def __init__(self, screen: str) -> None:
        super().__init__()
        self.screen_name = screen
        self._view: View | None = None

    def show(self, view: View) -> None:
        self._view = view
        self.styles.height = self.rows_for(view)
        self.repaint()

    def rows_for(self, view: View) -> int:
        """The rows that the bar takes in this state."""
        return 2 if self._hint(view)[0] else 1

    def _hint(self, view: View) -> tuple[int, str]:
        if self.screen_name not in GUIDED:
            return 0, ""
        return guide(view, keys.written(), choosing=self.screen_name == "scenarios")

    def paint(self, width: int, height: int) -> list[Row]:
        if self._view is None:
            return []
        step, text = self._hint(self._view)
        hint = [line(width, (f"step {step} of {STEPS}", "key"), f"  {text}")] if step and height > 1 else []
        return [*hint, paint_keys(keys.bar(self.screen_name, self._view), width)]


def paint_keys(shown: Sequence[tuple[str, str]], width: int) -> Row:
    """As many (key, label) pairs as fit."""
    parts: list[Segment] = []
    room = width
    for key, label in shown:
        need = cell_width(key) + cell_width(label) + (3 if parts else 1)
        if need > room:
            break
        parts += [("  ", "")] if parts else []
        parts += [(key, "key"), (f" {label}", "dim")]
        room -= need
    return line(width, *parts)


class TitleBar(Zone):
    """A screen's name, and one line about it."""

    DEFAULT_CSS = "TitleBar { height: 2; }"

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._message = ""
        self._style = "dim"

    def say(self, message: str, style: str = "dim") -> None:
        self._message, self._style = message, style
        self.repaint()

    def paint(self, width: int, height: int) -> list[Row]:
        return [spread(width, [(self._title, "heading"), ("   ", ""), (self._message, self._style)], []), line(width)]


class DrawnZone(Zone):
    """Draws what `source` paints for a width and a height."""

    def __init__(self, source: Callable[[int, int], list[Row]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._source = source

    def paint(self, width: int, height: int) -> list[Row]:
        return self._source(width, height)
