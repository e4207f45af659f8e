"""The wanted screen: Textual's writes as cells, and the sequences that do not change cells.

Textual's updates are regular: cursor moves, SGR, hyperlinks, text and newlines. All other sequences pass through in order. After a
sequence that may change cells the whole screen is drawn again.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from gpuconsole.tui.driver.cells import PLAIN, CellStyle, after, clip, linked, split
from gpuconsole.tui.driver.terminal import Terminal

_TOKENS = re.compile(
    r"\x1b\[(?P<sgr>[0-9;]*)m"
    r"|(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
    r"|\x1b\[(?P<move>[0-9;]*)H"
    r"|(?P<newline>\r?\n|\r)"
    r"|\x1b\]8;(?P<link>[^\x07\x1b]*)(?:\x07|\x1b\\)"
    r"|\x1b\[\?2026(?P<update>[hl])"
    r"|\x1b\[\?1049(?P<alternate>[hl])"
    # modes, queries, keyboard protocols, window reports, titles, clipboard, pointer shape, bell: no cell changes
    r"|(?P<quiet>\x1b\[[?>=<][0-9;]*\$?[hlpuqnc]|\x1b\[>[0-9;]*m|\x1b\[[0-9;]*(?:[nct]| q)|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>]|\x07)"
    r"|(?P<rest>\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z)"
    r"|(?P<other>\x1b\[[0-?]*[ -/]*[@-~]|\x1b[PX^_].*?\x1b\\|\x1b[ -/]*[0-~]|.)",
    re.DOTALL,
)
LONGEST_SEQUENCE = 1 << 20
"""A longer sequence has no end; it passes through unchanged."""


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
    """A grid of cells. `feed` updates it. `changed` rows and `passing` sequences wait to be taken."""

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
                    self.passing.append(Passing(token[0], Effect.ENTER if token["alternate"] == "h" else Effect.LEAVE))
                case "quiet":
                    self.passing.append(Passing(token[0], Effect.NONE))
                case "rest" if len(token[0]) < LONGEST_SEQUENCE:
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
