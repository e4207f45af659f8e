"""The sent screen: the present content of the terminal, and the shortest bytes that change it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from gpuconsole.tui.driver.cells import PLAIN, CellStyle, change, is_narrow, is_steady

UNKNOWN = -1
_BLANKS = re.compile(" {8,}")
"""From this many blanks on, erasing needs fewer bytes than writing."""

Cells = list[str]
Styles = list[CellStyle]


class Sent:
    """The rows of the terminal. None is a cell with unknown content; `UNKNOWN` is a cursor at an unknown position."""

    def __init__(self, width: int, height: int) -> None:
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        """Set the size; the content becomes unknown."""
        self._width, self._height = width, height
        self.forget()

    def forget(self) -> None:
        self._chars: list[list[str | None]] = [[None] * self._width for _ in range(self._height)]
        self._styles: list[list[CellStyle | None]] = [[None] * self._width for _ in range(self._height)]
        self._style: CellStyle | None = None
        self._x = self._y = UNKNOWN

    def row(self, y: int, chars: Cells, styles: Styles) -> str:
        """The bytes that make row `y` show these cells."""
        shown, shown_styles = self._chars[y], self._styles[y]
        if chars == shown and styles == shown_styles:
            return ""
        different = zip(chars, shown, styles, shown_styles, strict=True)
        changed = [x for x, (char, old, style, old_style) in enumerate(different) if char != old or style is not old_style]
        text_ends = _end_of_text(chars, styles)
        tail = [x for x in changed if x >= text_ends]
        parts: list[str] = []
        for start, end in _spans(changed if len(tail) <= 4 else changed[: -len(tail)], chars, styles):
            for first, stop, style in _pieces(start, end, chars, styles):
                parts.append(self.go(first, y))
                parts.append(self._change_style(style))
                text = "".join(chars[first:stop])
                if is_narrow(text):
                    self._narrow(parts, y, first, text)
                else:
                    self._any(parts, y, first, chars[first:stop])
        if len(tail) > 4:
            parts += (self.go(tail[0], y), self._change_style(None), "\x1b[K")
        shown[:] = chars
        shown_styles[:] = styles
        return "".join(parts)

    @property
    def cursor(self) -> tuple[int, int]:
        return self._x, self._y

    def go(self, x: int, y: int) -> str:
        """The shortest bytes that move the cursor."""
        if (self._x, self._y) == (x, y):
            return ""
        best = _absolute(x, y)
        if self._x != UNKNOWN and y >= self._y:
            down = _step(y - self._y, "B")
            best = min(best, down + _along(self._x, x), key=len)
        self._x, self._y = x, y
        return best

    def plain(self) -> str:
        """The bytes that reset the style, so that other programs write without our colours."""
        if self._style is PLAIN:
            return ""
        before, self._style = self._style, PLAIN
        return change(before, PLAIN)

    def _change_style(self, style: CellStyle | None) -> str:
        before = self._style
        if style is None:
            style = PLAIN if before is None or before.shows_on_blanks else before
        self._style = style
        return change(before, style)

    def _narrow(self, parts: list[str], y: int, start: int, text: str) -> None:
        """Write one character per cell. Long blanks are erased."""
        at = 0
        assert self._style is not None
        for blanks in () if self._style.shows_on_blanks else _BLANKS.finditer(text):
            self._write(parts, text[at : blanks.start()])
            at = blanks.end()
            parts.append(f"\x1b[{at - blanks.start()}X")
            if at < len(text):
                parts.append(self.go(start + at, y))
        self._write(parts, text[at:])

    def _any(self, parts: list[str], y: int, start: int, cells: Cells) -> None:
        """Write cell by cell. After a character whose width differs between terminals, the cursor is positioned again."""
        for x, cell in enumerate(cells, start):
            if not cell:
                continue
            parts.append(self.go(x, y))
            parts.append(cell)
            width = next((n for n, char in enumerate(cells[x - start + 1 :], 1) if char), len(cells) - (x - start))
            self._x = x + width if is_steady(cell) and x + width < self._width else UNKNOWN

    def _write(self, parts: list[str], text: str) -> None:
        if text:
            parts.append(text)
            self._x += len(text)
            if self._x >= self._width:  # terminals differ in the position of the cursor here
                self._x = UNKNOWN


def _spans(changed: list[int], chars: Cells, styles: Styles) -> Iterator[tuple[int, int]]:
    """Runs of cells to write, with whole wide characters. A gap is written too where a cursor move needs as many bytes."""
    if not changed:
        return
    start = changed[0]
    for last, following in pairwise([*changed, len(chars) + 10]):
        if following == last + 1 or (following < len(chars) and _cheap(last, following, chars, styles)):
            continue
        end = last + 1
        while end < len(chars) and chars[end] == "":
            end += 1
        while chars[start] == "":
            start -= 1
        yield start, end
        start = following


def _cheap(last: int, following: int, chars: Cells, styles: Styles) -> bool:
    """Whether writing the unchanged cells between two changed cells needs no more bytes than a cursor move."""
    gap = slice(last + 1, following)
    text = "".join(chars[gap])
    if len(text.encode()) > (3 if following == last + 2 else 4) or not is_narrow(text):
        return False
    style = styles[last]
    return all(
        one is style or (one is PLAIN and char == " " and not style.shows_on_blanks)
        for char, one in zip(chars[gap], styles[gap], strict=True)
    )


def _pieces(start: int, end: int, chars: Cells, styles: Styles) -> Iterator[tuple[int, int, CellStyle | None]]:
    """Runs that can be written in one style. None: plain blanks, which fit any style that is invisible on blanks."""
    run = start
    style: CellStyle | None = None
    for x in range(start, end):
        here = None if styles[x] is PLAIN and chars[x] == " " else styles[x]
        if here is style or (here is None and style is not None and not style.shows_on_blanks):
            continue
        if here is not None and style is None and not here.shows_on_blanks:  # the blanks before this cell get its style
            style = here
            continue
        if x > run:
            yield run, x, style
        run, style = x, here
    yield run, end, style


def _end_of_text(chars: Cells, styles: Styles) -> int:
    """The index from which on the row is blank."""
    end = len(chars)
    while end and chars[end - 1] == " " and styles[end - 1] is PLAIN:
        end -= 1
    return end


def _step(count: int, direction: str) -> str:
    return "" if not count else f"\x1b[{direction}" if count == 1 else f"\x1b[{count}{direction}"


def _along(x: int, to: int) -> str:
    """The shortest cursor move within a row."""
    if to >= x:
        return _step(to - x, "C")
    back = "\b" * (x - to)
    return min(back, _step(x - to, "D"), "\r" + _step(to, "C"), key=len)


@lru_cache(8192)
def _absolute(x: int, y: int) -> str:
    if x == 0:
        return "\x1b[H" if y == 0 else f"\x1b[{y + 1}H"
    return f"\x1b[{y + 1};{x + 1}H"
