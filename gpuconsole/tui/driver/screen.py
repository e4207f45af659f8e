"""The wanted and the sent screen. Textual's writes go in; the bytes that the terminal needs come
out. No clock, no thread, no I/O.

Textual's writes -> `Screen.feed` -> `Wanted`, the cells that the terminal should show
                    `Screen.take` <- `Sent`, the cells that the terminal shows now
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from gpuconsole.tui.driver.cells import (
    PLAIN,
    CellStyle,
    after,
    change,
    clip,
    is_narrow,
    is_steady,
    linked,
    split,
)
from gpuconsole.tui.terminal import Terminal

BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
UNKNOWN = -1
"""The position of a cursor that may be anywhere."""
MAX_SEQUENCE_LENGTH = 1 << 20
"""A longer sequence has no end; it passes through unchanged."""

Cells = list[str]
Styles = list[CellStyle]

# --- the screen -----------------------------------------------------------------------------------


@dataclass
class Cost:
    """The output so far. `merged` counts updates that were replaced by newer updates before they
    were sent.

    `writing_s`: seconds in which a write to the terminal was under way. On a slow line a write
    blocks.
    """

    bytes: int = 0
    frames: int = 0
    merged: int = 0
    writing_s: float = 0.0


class Screen:
    """`feed` it, and `take` from it while something is `pending`.

    A frame may be taken in parts. Each part shows the newest state, so that a frame can change
    while it is sent.
    """

    def __init__(
        self, width: int, height: int, terminal: Terminal, *, entered: bool = False
    ) -> None:
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
        """Set the size of the terminal. After a change of the size the content of the terminal is
        unknown."""
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
        """Whether a cleared screen is held back: Textual clears a screen before it draws the next
        one."""
        return self._has_cells and self._opening

    def open(self) -> None:
        """Send the cleared screen."""
        self._opening = False

    def take(self, limit: int) -> str:
        """The next bytes: sequences that pass through, then rows, until there are `limit`
        characters."""
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
            # continue below the last row
            y = min((y for y in wanted.changed if y >= self._row), default=min(wanted.changed))
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


# --- the wanted screen: Textual's writes as cells, and the sequences that change no cells ---------
#
# Textual's updates are regular: cursor moves, SGR, hyperlinks, text and newlines. All other
# sequences pass through in order. After a sequence that may change cells the whole screen is drawn
# again.

_TOKENS = re.compile(
    r"\x1b\[(?P<sgr>[0-9;]*)m"
    r"|(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
    r"|\x1b\[(?P<move>[0-9;]*)H"
    r"|(?P<newline>\r?\n|\r)"
    r"|\x1b\]8;(?P<link>[^\x07\x1b]*)(?:\x07|\x1b\\)"
    r"|\x1b\[\?2026(?P<update>[hl])"
    r"|\x1b\[\?1049(?P<alternate>[hl])"
    # modes, queries, keyboard protocols, window reports, titles, clipboard, pointer shape, bell: no
    # cell changes
    r"|(?P<quiet>\x1b\[[?>=<][0-9;]*\$?[hlpuqnc]|\x1b\[>[0-9;]*m|\x1b\[[0-9;]*(?:[nct]|"
    r" q)|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>]|\x07)"
    r"|(?P<rest>\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z)"
    r"|(?P<other>\x1b\[[0-?]*[ -/]*[@-~]|\x1b[PX^_].*?\x1b\\|\x1b[ -/]*[0-~]|.)",
    re.DOTALL,
)


class Effect(Enum):
    """The effect of a passing sequence on the screen."""

    NONE = "none"
    UNKNOWN = "unknown"
    ENTER = "enter the alternate screen"
    LEAVE = "leave it"


class Passing(NamedTuple):
    text: str
    effect: Effect


class Wanted:
    """A grid of cells. `feed` updates it. `changed` rows and `passing` sequences wait to be
    taken."""

    def __init__(self, width: int, height: int, terminal: Terminal) -> None:
        self.width, self.height = width, height
        self.chars: list[list[str]] = []
        self.styles: list[list[CellStyle]] = []
        self.changed: set[int] = set()
        self.passing: list[Passing] = []
        self.cursor = (0, 0)
        self.updates = 0
        """The number of writes that have drawn cells."""
        self.updating = False
        """An update has begun and not ended: the screen is incomplete."""
        self.synchronized = False
        """The terminal supports synchronized output."""
        self._terminal = terminal
        self._x = self._y = 0
        self._style = PLAIN
        self._rest = ""
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        """Keep the cells that fit; new cells are blank."""
        for row in self.chars:
            row[:] = clip(row, width) + [" "] * (width - len(row))
        for styles in self.styles:
            styles[:] = styles[:width] + [PLAIN] * (width - len(styles))
        del self.chars[height:], self.styles[height:]
        self.chars += [[" "] * width for _ in range(height - len(self.chars))]
        self.styles += [[PLAIN] * width for _ in range(height - len(self.styles))]
        self.width, self.height = width, height
        self.changed = {y for y in self.changed if y < height}

    def feed(self, data: str) -> None:
        """Add one write."""
        if self._rest:
            data, self._rest = self._rest + data, ""
        drawn = False
        for token in _TOKENS.finditer(data):
            match token.lastgroup:
                case "text":
                    self._put(token["text"])
                    drawn = True
                case "sgr":
                    self._style = after(self._style, token["sgr"], self._terminal.colours)
                case "move":
                    self._move(token["move"])
                case "newline":
                    self._x = 0
                    self._y += token["newline"].endswith("\n")
                case "link":
                    self._style = linked(self._style, token["link"])
                case "update":
                    self.synchronized = True
                    self.updating = token["update"] == "h"
                case "alternate":
                    self.passing.append(
                        Passing(
                            token[0], Effect.ENTER if token["alternate"] == "h" else Effect.LEAVE
                        )
                    )
                case "quiet":
                    self.passing.append(Passing(token[0], Effect.NONE))
                case "rest" if len(token[0]) < MAX_SEQUENCE_LENGTH:
                    self._rest = token[0]
                case _:
                    self.passing.append(Passing(token[0], Effect.UNKNOWN))
        if drawn and not self.updates:
            self.changed = set(range(self.height))  # the blank rows must be sent too
        self.updates += drawn
        self.cursor = (min(self._x, self.width - 1), min(self._y, self.height - 1))

    @property
    def blank(self) -> bool:
        """Whether the screen is empty: Textual clears a screen before it draws the next one."""
        return all(row.count(" ") == self.width for row in self.chars) and not any(
            style.shows_on_blanks for row in self.styles for style in set(row)
        )

    @property
    def first_row_blank(self) -> bool:
        return self.chars[0].count(" ") == self.width

    def _move(self, parameters: str) -> None:
        row, _, column = parameters.partition(";")
        self._y = max(0, int(row or 1) - 1)
        self._x = max(0, int(column or 1) - 1)

    def _put(self, text: str) -> None:
        joined, cells = split(text, self._terminal.ascii_only)
        x, y = self._x, self._y
        self._x += len(cells)
        if y >= self.height:
            return
        if joined and 0 < x <= self.width:
            self._join(y, x - 1, joined)
        if x >= self.width or not cells:
            return
        if x + len(cells) > self.width:
            cells = clip(cells, self.width - x)
        self._mend(y, x, x + len(cells))
        self.chars[y][x : x + len(cells)] = cells
        style = self._style
        if style.shows_on_blanks or style is PLAIN or " " not in text:
            self.styles[y][x : x + len(cells)] = [style] * len(cells)
        else:  # a blank has the same appearance in any colour
            self.styles[y][x : x + len(cells)] = [PLAIN if cell == " " else style for cell in cells]
        self.changed.add(y)

    def _join(self, y: int, x: int, joined: str) -> None:
        """Zero-width characters belong to the cell before them."""
        chars = self.chars[y]
        while x > 0 and chars[x] == "":
            x -= 1
        chars[x] += joined
        self.changed.add(y)

    def _mend(self, y: int, start: int, end: int) -> None:
        """Replace wide characters that are about to lose one half with blanks."""
        chars = self.chars[y]
        if chars[start] == "":
            x = start
            while chars[x] == "":
                chars[x] = " "
                x -= 1
            chars[x] = " "
        while end < self.width and chars[end] == "":
            chars[end] = " "
            end += 1


# --- the sent screen: the present content of the terminal, and the shortest bytes that change it
# ---

_BLANKS = re.compile(" {8,}")
"""From this many blanks on, erasing needs fewer bytes than writing."""


class Sent:
    """The rows of the terminal. None is a cell with unknown content; `UNKNOWN` is a cursor at an
    unknown position."""

    def __init__(self, width: int, height: int) -> None:
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        """Set the size; the content becomes unknown."""
        self._width, self._height = width, height
        self.forget()

    def forget(self) -> None:
        self._chars: list[list[str | None]] = [[None] * self._width for _ in range(self._height)]
        self._styles: list[list[CellStyle | None]] = [
            [None] * self._width for _ in range(self._height)
        ]
        self._style: CellStyle | None = None
        self._x = self._y = UNKNOWN

    def row(self, y: int, chars: Cells, styles: Styles) -> str:
        """The bytes that make row `y` show these cells."""
        shown, shown_styles = self._chars[y], self._styles[y]
        if chars == shown and styles == shown_styles:
            return ""
        different = zip(chars, shown, styles, shown_styles, strict=True)
        changed = [
            x
            for x, (char, old, style, old_style) in enumerate(different)
            if char != old or style is not old_style
        ]
        text_ends = _end_of_text(chars, styles)
        tail = [x for x in changed if x >= text_ends]
        spans = _spans(changed if len(tail) <= 4 else changed[: -len(tail)], chars, styles)
        written = self._shortest(
            y,
            chars,
            [piece for start, end in spans for piece in _pieces(start, end, chars, styles)],
        )
        if len(tail) > 4:
            written += self.go(tail[0], y) + self._change_style(None) + "\x1b[K"
        shown[:] = chars
        shown_styles[:] = styles
        return written

    def _shortest(self, y: int, chars: Cells, pieces: list[Piece]) -> str:
        """The bytes of the pieces of a row, from left to right or style by style: a change of
        colour needs more bytes than a move of the cursor."""
        before = self._style, self._x, self._y
        written = self._pieces(y, chars, pieces)
        by_style = _by_style(pieces, before[0])
        if by_style == pieces or not is_narrow("".join(chars)):
            return written
        after = self._style, self._x, self._y
        self._style, self._x, self._y = before
        other = self._pieces(y, chars, by_style)
        if len(other) < len(written):
            return other
        self._style, self._x, self._y = after
        return written

    def _pieces(self, y: int, chars: Cells, pieces: list[Piece]) -> str:
        parts: list[str] = []
        for first, stop, style in pieces:
            parts.append(self.go(first, y))
            parts.append(self._change_style(style))
            text = "".join(chars[first:stop])
            if is_narrow(text):
                self._narrow(parts, y, first, text)
            else:
                self._any(parts, y, first, chars[first:stop])
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
        """Write cell by cell. After a character whose width differs between terminals, the cursor
        is positioned again."""
        for x, cell in enumerate(cells, start):
            if not cell:
                continue
            parts.append(self.go(x, y))
            parts.append(cell)
            width = next(
                (n for n, char in enumerate(cells[x - start + 1 :], 1) if char),
                len(cells) - (x - start),
            )
            self._x = x + width if is_steady(cell) and x + width < self._width else UNKNOWN

    def _write(self, parts: list[str], text: str) -> None:
        if text:
            parts.append(text)
            self._x += len(text)
            if self._x >= self._width:  # terminals differ in the position of the cursor here
                self._x = UNKNOWN


def _spans(changed: list[int], chars: Cells, styles: Styles) -> Iterator[tuple[int, int]]:
    """Runs of cells to write, with whole wide characters. A gap is written too where a cursor move
    needs as many bytes."""
    if not changed:
        return
    start = changed[0]
    for last, following in pairwise([*changed, len(chars) + 10]):
        if following == last + 1 or (
            following < len(chars) and _cheap(last, following, chars, styles)
        ):
            continue
        end = last + 1
        while end < len(chars) and chars[end] == "":
            end += 1
        while chars[start] == "":
            start -= 1
        yield start, end
        start = following


def _cheap(last: int, following: int, chars: Cells, styles: Styles) -> bool:
    """Whether writing the unchanged cells between two changed cells needs no more bytes than a
    cursor move."""
    gap = slice(last + 1, following)
    text = "".join(chars[gap])
    if len(text.encode()) > (3 if following == last + 2 else 4) or not is_narrow(text):
        return False
    style = styles[last]
    return all(
        gap_style is style or (gap_style is PLAIN and char == " " and not style.shows_on_blanks)
        for char, gap_style in zip(chars[gap], styles[gap], strict=True)
    )


Piece = tuple[int, int, CellStyle | None]
"""The first cell of a run, the cell after it, and the style in which it can be written. None: plain
blanks, which fit any style that is invisible on blanks."""


def _pieces(start: int, end: int, chars: Cells, styles: Styles) -> Iterator[Piece]:
    """Runs that can be written in one style."""
    run = start
    style: CellStyle | None = None
    for x in range(start, end):
        here = None if styles[x] is PLAIN and chars[x] == " " else styles[x]
        if here is style or (here is None and style is not None and not style.shows_on_blanks):
            continue
        # the blanks before this cell get its style
        if here is not None and style is None and not here.shows_on_blanks:
            style = here
            continue
        if x > run:
            yield run, x, style
        run, style = x, here
    yield run, end, style


def _by_style(pieces: list[Piece], now: CellStyle | None) -> list[Piece]:
    """The pieces in the order of their styles: first those in the present style, then each style
    where it appears first."""
    order: dict[CellStyle | None, int] = {None: 0, now: 0}
    for _, _, style in pieces:
        order.setdefault(style, len(order))
    return sorted(pieces, key=lambda piece: order[piece[2]])


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
