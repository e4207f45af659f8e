"""Text cut into terminal cells, and the style of a cell: read from SGR sequences, written as the
shortest change from one style to the next."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from rich.cells import cell_len
from rich.color import Color, ColorSystem

from gpuconsole.report.cells import to_ascii
from gpuconsole.tui.terminal import Colours

# --- text cut into terminal cells -----------------------------------------------------------------

_NARROW = (
    " -~\u00a0-\u00ac\u00ae-\u02ff\u0370-\u0482\u2010-\u2027\u2030-\u205e"
    "\u2190-\u21ff\u2200-\u22ff\u2500-\u25fc\u2800-\u28ff"
)
_WIDE = "\u3041-\u3096\u30a1-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff60"
is_narrow = re.compile(f"[{_NARROW}]*").fullmatch
is_steady = re.compile(f"[{_NARROW}{_WIDE}]*").fullmatch
"""Characters whose width is the same on all terminals. After any other character the position of
the cursor is unknown."""


def split(text: str, ascii_only: bool = False) -> tuple[str, list[str]]:
    """(zero-width characters that belong to the cell before, the cells of the rest)."""
    if text.isascii() or (is_narrow(text) and not ascii_only):
        return "", list(text)
    joined, cells = _split(text)
    return ("", [_ascii(cell) for cell in cells]) if ascii_only else (joined, list(cells))


@lru_cache(2048)
def _split(text: str) -> tuple[str, tuple[str, ...]]:
    cells: list[str] = []
    joined = cluster = ""
    for char in text:
        if cluster and (cell_len(char) == 0 or cluster.endswith("\u200d")):
            cluster += char
        elif not cluster and cell_len(char) == 0:
            joined += char
        else:
            cells += _cluster(cluster)
            cluster = char
    return joined, (*cells, *_cluster(cluster))


def _cluster(cluster: str) -> list[str]:
    return [cluster] + [""] * (cell_len(cluster) - 1) if cluster else []


_DRAWN_AS = {"-": "▔", "|": "▏▎▍▋▊▉▕", "*": "•✓", "o": "○◐◯", "x": "✗", "'": "‘’", '"': "“”"}
_FRAMES = {ord(char): shown for shown, chars in _DRAWN_AS.items() for char in chars}
"""Characters of Textual's own widgets that `to_ascii` does not translate."""


@lru_cache(2048)
def _ascii(cell: str) -> str:
    """One ASCII character for any cell."""
    shown = to_ascii([(cell.translate(_FRAMES), "")])[0][0]
    if len(shown) == 1 and shown != "?":
        return shown
    if cell and (name := unicodedata.name(cell[0], "")).startswith("BOX DRAWINGS"):
        return (
            "+"
            if ("VERTICAL" in name) == ("HORIZONTAL" in name)
            else "|"
            if "VERTICAL" in name
            else "-"
        )
    plain = unicodedata.normalize("NFKD", cell)[:1]
    return plain if plain.isascii() and plain.isprintable() and plain else "?"


def clip(cells: list[str], room: int) -> list[str]:
    """The first `room` cells; a wide character that does not fit whole leaves blanks."""
    kept = cells[:room]
    if len(cells) > room and cells[room] == "":
        for x in range(room - 1, -1, -1):
            lead, kept[x] = kept[x], " "
            if lead:
                break
    return kept


# --- the style of a cell --------------------------------------------------------------------------

_OFF = {
    22: {1, 2},
    23: {3},
    24: {4, 21},
    25: {5, 6},
    27: {7},
    28: {8},
    29: {9},
    54: {51, 52},
    55: {53},
}
_ON = frozenset().union(*_OFF.values())
_SHOWN_ON_BLANKS = frozenset({4, 7, 9, 21, 51, 52, 53})


@dataclass(frozen=True, slots=True, eq=False)
class CellStyle:
    """Attributes as SGR codes, colours as SGR parameters ("" is the default), a hyperlink. One
    object per style: compare with `is`.

    `shows_on_blanks`: a blank in this style differs from a plain blank.
    """

    attributes: frozenset[int]
    fore: str
    back: str
    link: str
    shows_on_blanks: bool


@cache
def cell_style(attributes: frozenset[int], fore: str, back: str, link: str) -> CellStyle:
    """The one object for this style."""
    return CellStyle(
        attributes, fore, back, link, bool(back or link or attributes & _SHOWN_ON_BLANKS)
    )


PLAIN = cell_style(frozenset(), "", "", "")


@lru_cache(4096)
def after(before: CellStyle, codes: str, colours: Colours) -> CellStyle:
    """The style after an SGR sequence with these parameters, reduced to the colours of the
    terminal."""
    attributes, fore, back = set(before.attributes), before.fore, before.back
    for code, parameters in _codes(codes):
        if code == 0:
            attributes, fore, back = set(), "", ""
        elif code in _ON:
            attributes.add(code)
        elif code in _OFF:
            attributes -= _OFF[code]
        elif 30 <= code <= 39 or 90 <= code <= 97:
            fore = _colour(code, parameters, colours, foreground=True)
        elif 40 <= code <= 49 or 100 <= code <= 107:
            back = _colour(code, parameters, colours, foreground=False)
    return cell_style(frozenset(attributes), fore, back, before.link)


def linked(before: CellStyle, link: str) -> CellStyle:
    """The style with another hyperlink; ";" ends one."""
    return cell_style(before.attributes, before.fore, before.back, "" if link == ";" else link)


def _codes(text: str) -> Iterator[tuple[int, list[int]]]:
    """(code, its parameters): the codes 38 and 48 have parameters."""
    numbers = [int(part) if part else 0 for part in text.split(";")]
    while numbers:
        code = numbers.pop(0)
        size = 0
        if code in (38, 48) and numbers:
            size = {5: 2, 2: 4}.get(numbers[0], 0)
        parameters, numbers = numbers[:size], numbers[size:]
        yield code, parameters


def _colour(code: int, parameters: list[int], colours: Colours, *, foreground: bool) -> str:
    if colours is Colours.NONE or code in (39, 49):
        return ""
    if code not in (38, 48):
        return str(code)
    match parameters:
        case [5, number]:
            colour = Color.from_ansi(number)
        case [2, red, green, blue]:
            colour = Color.from_rgb(red, green, blue)
        case _:
            return ""
    if colours is Colours.SIXTEEN:
        colour = colour.downgrade(ColorSystem.STANDARD)
    elif colours is Colours.MANY:
        colour = colour.downgrade(ColorSystem.EIGHT_BIT)
    return ";".join(colour.get_ansi_codes(foreground))


@lru_cache(4096)
def change(before: CellStyle | None, wanted: CellStyle) -> str:
    """The shortest sequence from one style to another; None: the present style is unknown."""
    if before is wanted:
        return ""
    link = (
        ""
        if before is not None and before.link == wanted.link
        else f"\x1b]8;{wanted.link or ';'}\x1b\\"
    )
    full = [str(code) for code in sorted(wanted.attributes)] + [
        colour for colour in (wanted.fore, wanted.back) if colour
    ]
    best = f"\x1b[{';'.join(['0', *full])}m" if full else "\x1b[m"
    if before is not None and before.attributes <= wanted.attributes:
        parts = [str(code) for code in sorted(wanted.attributes - before.attributes)]
        if before.fore != wanted.fore:
            parts.append(wanted.fore or "39")
        if before.back != wanted.back:
            parts.append(wanted.back or "49")
        step = f"\x1b[{';'.join(parts)}m" if parts else ""
        best = min(best, step, key=len)
    return link + best
