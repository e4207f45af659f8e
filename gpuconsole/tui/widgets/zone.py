"""The base of every widget that draws rows: only the rows that differ are refreshed."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gpuconsole.report.cells import Row, to_ascii
from gpuconsole.tui.theme import style_of


class Zone(Widget):
    """Subclasses paint rows; `repaint` compares them with those on the screen and refreshes what changed.

    The app sets `ascii_only` for terminals that are not UTF-8, and `sixteen` for terminals with sixteen colours. `refreshed_rows` counts, for the tests.
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
            segments = [Segment(text, self._named_style(name)) for text, name in self._rows[y]]
            strip = self._strips[y] = Strip(segments).adjust_cell_length(width)
        return strip

    def _named_style(self, name: str) -> Style:
        style = self._styles_by_name.get(name)
        if style is None:
            style = self._styles_by_name[name] = self.rich_style + style_of(name, self.app.theme, sixteen=Zone.sixteen)
        return style
