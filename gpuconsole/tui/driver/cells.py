"""Text cut into terminal cells: one string per cell, and "" for the second cell of a wide character."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from rich.cells import cell_len

from gpuconsole.report.cells import to_ascii

_NARROW = " -~\u00a0-\u00ac\u00ae-\u02ff\u0370-\u0482\u2010-\u2027\u2030-\u205e\u2190-\u21ff\u2200-\u22ff\u2500-\u25fc\u2800-\u28ff"
_WIDE = "\u3041-\u3096\u30a1-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff60"
is_narrow = re.compile(f"[{_NARROW}]*").fullmatch
is_steady = re.compile(f"[{_NARROW}{_WIDE}]*").fullmatch
"""Characters whose width is the same on all terminals. After any other character the position of the cursor is unknown."""


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
        return "+" if ("VERTICAL" in name) == ("HORIZONTAL" in name) else "|" if "VERTICAL" in name else "-"
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
