"""The list of every screen that shows lines: cursor, scrolling, page keys, mouse."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from textual import events

from gpuconsole.report.cells import Row, beside, fill
from gpuconsole.report.page import Lines, follow
from gpuconsole.tui.widgets.live import Zone

FAR = 1_000_000
"""More lines than any list has."""
WHEEL_ROWS = 3
UNKNOWN_SIZE = (80, 24)
"""Used for keys that arrive before the first layout."""


class ListZone(Zone):
    """Shows the `Lines` that `source` makes for a width and a height, and holds the selection.

    The selection is a line's key: it follows its line when the order changes. When its line
    disappears, the nearest line is selected. Lines without any key scroll instead. `on_move` is
    called after each change of the selection or of the lines in sight, `on_choose` when the
    selected line is clicked. While `locked`, nothing moves.
    """

    def __init__(
        self,
        source: Callable[[int, int], Lines],
        on_move: Callable[[], None] = lambda: None,
        on_choose: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.locked = False
        self._source = source
        self._on_move = on_move
        self._on_choose = on_choose
        self._lines = Lines([], lambda n, selected: [])
        self._selected: Hashable | None = None
        self._reported: tuple[object, ...] = ()
        self._index = self._offset = self._room = self._head = 0

    @property
    def selected(self) -> Hashable | None:
        """The key of the selected line; None where no line can be selected."""
        return self._selected if self._selected in self._lines.keys else None

    @property
    def position(self) -> str:
        """`rows 1-20 of 50`; empty where all lines are in sight."""
        total = len(self._lines.keys)
        if total <= self._room:
            return ""
        return f"rows {self._offset + 1}-{min(total, self._offset + self._room)} of {total}"

    @property
    def has_more(self) -> bool:
        """Whether there are lines below those in sight."""
        return self._offset + self._room < len(self._lines.keys)

    def paint(self, width: int, height: int) -> list[Row]:
        lines = self._read(width, height)
        side = lines.side(self._selected) if lines.side is not None else []
        own = width - lines.side_width
        foot = lines.foot(self._selected) if lines.foot is not None else []
        self._head = len(lines.head)
        self._room = max(0, height - self._head - len(foot))
        self._scroll()
        last = min(len(lines.keys), self._offset + self._room)
        rows = [
            lines.row(n, n == self._index and lines.keys[n] is not None)
            for n in range(self._offset, last)
        ]
        body = fill([*lines.head, *rows, *foot], own, height)
        return (
            beside(body, fill(side, lines.side_width, height)) if lines.side is not None else body
        )

    def _read(self, width: int, height: int) -> Lines:
        """Take the present lines, and find the selected line among them."""
        lines = self._lines = self._source(width, height)
        places = [n for n, key in enumerate(lines.keys) if key is not None]
        if self._selected is not None and self._selected in lines.keys:
            self._index = lines.keys.index(self._selected)
        elif places:
            self._index = min(places, key=lambda n: abs(n - self._index))
            self._selected = lines.keys[self._index]
        return lines

    def _scroll(self) -> None:
        """Keep the selected line in sight, with everything above the first line that can be
        selected."""
        keys = self._lines.keys
        if any(key is not None for key in keys):
            self._offset = follow(self._offset, self._index, self._room, len(keys))
            if self._index < self._room and all(key is None for key in keys[: self._index]):
                self._offset = 0
        else:
            self._offset = max(0, min(self._offset, len(keys) - self._room))

    def repaint(self) -> None:
        super().repaint()
        state = self.selected, self.position, self.has_more
        if state != self._reported:
            self._reported = state
            self._on_move()

    # --- moves ------------------------------------------------------------------------------------

    def move(self, step: int) -> None:
        """Move the selection by `step` lines that can be selected, or scroll."""
        if self.locked:
            return
        lines = self._read(*self._content_room)
        places = [n for n, key in enumerate(lines.keys) if key is not None]
        if places:
            at = places.index(self._index) if self._index in places else 0
            self._select_at(places[max(0, min(len(places) - 1, at + step))])
        else:
            self._offset = max(0, self._offset + step)
        self.repaint()

    def page(self, pages: int) -> None:
        self.move(pages * max(1, self._room - 1))

    def select_first(self) -> None:
        """Select the first line, and show the beginning of the list."""
        self._index = self._offset = 0
        self._selected = None
        self.repaint()

    def select(self, key: Hashable | None) -> None:
        """Select the line with this key, once there is one."""
        self._selected = key

    def scroll_to_start(self) -> None:
        """Show the beginning; the selection stays."""
        self._offset = 0

    def _select_at(self, index: int) -> None:
        self._index = index
        self._selected = self._lines.keys[index]

    @property
    def _content_room(self) -> tuple[int, int]:
        width, height = self.content_size
        return (width, height) if width and height else UNKNOWN_SIZE

    # --- mouse ------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        """A click selects a line; a click on the selected line chooses it."""
        n = self._offset + event.y - self._head
        in_list = (
            self._head <= event.y < self._head + self._room
            and event.x < self.content_size.width - self._lines.side_width
        )
        if self.locked or not in_list or n >= len(self._lines.keys) or self._lines.keys[n] is None:
            return
        if n == self._index:
            self._on_choose()
            return
        self._select_at(n)
        self.repaint()

    def on_mouse_scroll_down(self) -> None:
        self.move(WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        self.move(-WHEEL_ROWS)
