"""The key bar."""

from __future__ import annotations

from gpuconsole.report.cells import Row, Segment, cell_width, line

Keys = tuple[tuple[str, str], ...]

MAIN: Keys = (
    ("q", "quit"),
    ("s", "scenario"),
    ("enter", "try"),
    ("t", "tune"),
    ("d", "details"),
    ("i", "device"),
    ("p", "processes"),
    ("?", "help"),
    ("h", "history"),
    ("m", "models"),
    ("f", "profile"),
    ("k", "knobs"),
    ("u", "revert"),
    ("x", "stop"),
    ("l", "links"),
    ("b", "baseline"),
    ("r", "record"),
    ("e", "export"),
)
"""The most wanted first: what does not fit is left out whole, and is in the help."""


def paint_keys(keys: Keys, width: int) -> Row:
    """As many keys as fit."""
    parts: list[Segment] = []
    room = width
    for key, what in keys:
        need = cell_width(key) + cell_width(what) + (3 if parts else 1)
        if need > room:
            break
        parts += [("  ", "")] if parts else []
        parts += [(key, "key"), (f" {what}", "dim")]
        room -= need
    return line(width, *parts)
