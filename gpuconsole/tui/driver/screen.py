"""A wanted and a sent screen. Textual's writes go in; the bytes that the terminal needs come out. No clock, no thread, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from gpuconsole.tui.driver.sent import Sent
from gpuconsole.tui.driver.terminal import Terminal
from gpuconsole.tui.driver.wanted import Effect, Passing, Wanted

BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"


@dataclass
class Cost:
    """The output so far. `merged` counts updates that were replaced by newer updates before they were sent.

    `writing_s`: seconds in which a write to the terminal was under way. On a slow line a write blocks.
    """

    bytes: int = 0
    frames: int = 0
    merged: int = 0
    writing_s: float = 0.0


class Screen:
    """`feed` it, and `take` from it while something is `pending`.

    A frame may be taken in parts. Each part shows the newest state, so that a frame can change while it is sent.
    """

    def __init__(self, width: int, height: int, terminal: Terminal, *, entered: bool = False) -> None:
        """`entered`: the alternate screen is on, with a picture that the first frame replaces."""
        self.cost = Cost()
        self._wanted = Wanted(width, height, terminal)
        self._sent = Sent(width, height)
        self._entered = entered
        self._opening = True
        self._in_frame = False
        self._laid_out_after = 0
        self._counted = 0
        self._row = 0

    def feed(self, data: str) -> None:
        """Add one write of Textual."""
        wanted = self._wanted
        wanted.feed(data)
        if wanted.changed and not wanted.updating:
            if wanted.blank:
                self._opening = True
            elif self._opening and not wanted.first_row_blank:
                self._opening = False

    def resize(self, width: int, height: int) -> None:
        """Set the size of the terminal. After a change of the size the content of the terminal is unknown."""
        if (width, height) == (self._wanted.width, self._wanted.height):
            return
        self._laid_out_after = self._wanted.updates  # updates for the old size are not sent
        self._wanted.resize(width, height)
        self._sent.resize(width, height)
        self.redraw()

    def redraw(self) -> None:
        """Send the whole screen again: the content of the terminal is unknown."""
        self._sent.forget()
        if self._wanted.updates:
            self._wanted.changed.update(range(self._wanted.height))

    @property
    def pending(self) -> bool:
        """Whether `take` has anything to return."""
        return bool(self._wanted.passing) or (self._has_cells and not self._opening)

    @property
    def opening(self) -> bool:
        """Whether a cleared screen is held back: Textual clears a screen before it draws the next one."""
        return self._has_cells and self._opening

    def open(self) -> None:
        """Send the cleared screen."""
        self._opening = False

    def take(self, limit: int) -> str:
        """The next bytes: sequences that pass through, then rows, until there are `limit` characters."""
        parts: list[str] = []
        passing, self._wanted.passing = self._wanted.passing, []
        for item in passing:
            self._pass(parts, item)
        if self._has_cells and not self._opening:
            self._take_rows(parts, limit)
        return "".join(parts)

    def last_words(self) -> str:
        """The remaining sequences that pass through. No cells."""
        passing, self._wanted.passing = self._wanted.passing, []
        return "".join(item.text for item in passing)

    @property
    def _has_cells(self) -> bool:
        wanted = self._wanted
        if not self._entered or wanted.updating or wanted.updates <= self._laid_out_after:
            return False
        return bool(wanted.changed) or self._in_frame or self._sent.cursor != wanted.cursor

    def _pass(self, parts: list[str], item: Passing) -> None:
        match item.effect:
            case Effect.NONE:
                parts.append(item.text)
            case Effect.UNKNOWN:
                parts += (self._sent.plain(), item.text)
                self.redraw()
            case Effect.ENTER if not self._entered:  # a second sequence would clear the picture
                parts.append(item.text)
                self._entered = True
                self.redraw()
            case Effect.LEAVE:
                self._end_frame(parts)
                parts += (self._sent.plain(), item.text)
                self._entered = False

    def _take_rows(self, parts: list[str], limit: int) -> None:
        wanted, size = self._wanted, 0
        while wanted.changed and size < limit:
            y = min((y for y in wanted.changed if y >= self._row), default=min(wanted.changed))  # continue below the last row
            self._row = y
            wanted.changed.remove(y)
            row = self._sent.row(y, wanted.chars[y], wanted.styles[y])
            if row and not self._in_frame:
                self._in_frame = True
                if wanted.synchronized:
                    parts.append(BEGIN_UPDATE)
            parts.append(row)
            size += len(row)
        if not wanted.changed:
            parts.append(self._sent.go(*wanted.cursor))
            self._end_frame(parts)

    def _end_frame(self, parts: list[str]) -> None:
        if not self._in_frame:
            return
        self._in_frame = False
        self._row = 0
        if self._wanted.synchronized:
            parts.append(END_UPDATE)
        self.cost.frames += 1
        self.cost.merged += max(0, self._wanted.updates - self._counted - 1)
        self._counted = self._wanted.updates
