"""Rows that scroll: the layout of the other screens."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from gpuconsole.report import parts
from gpuconsole.report.cells import Row, fill, line, wrap


def window(rows: list[Row], offset: int, width: int, height: int) -> list[Row]:
    """`height` rows from `offset`."""
    return fill(rows[offset : offset + height], width, height)


def follow(offset: int, cursor: int, height: int, total: int) -> int:
    """The offset nearest to `offset` at which row `cursor` is visible, with one row of context if
    there is room."""
    if height <= 0:
        return 0
    margin = 1 if height >= 3 else 0
    offset = max(min(offset, cursor - margin), cursor - height + 1 + margin)
    return max(0, min(offset, total - height))


def heading(text: str, width: int) -> Row:
    return line(width, (text, "heading"))


def paragraph(text: str, width: int, style: str = "", indent: int = 0) -> list[Row]:
    return [
        line(width, (" " * indent + part, style)) for part in wrap(text, max(8, width - indent))
    ]


def labelled(label: str, text: str, width: int, column: int = 12, style: str = "") -> list[Row]:
    """`label` at the left, the wrapped text in a separate column. A label as long as its column has
    a separate row."""
    bare = label.lstrip(" ")
    return parts.lay_out(
        [
            parts.labelled(
                bare, text, style, column - (len(label) - len(bare)), len(label) - len(bare)
            )
        ],
        width,
    )


class Lines(NamedTuple):
    """The content of a list, for one width and height.

    `keys[n]` identifies line n for a selection; None: the line cannot be selected.
    `row(n, selected)` draws line n; only visible lines are drawn. `head` stays above the lines.
    `foot(key)` returns the rows below the lines, about the selected line. The number of these rows
    is the same for every key, so that the list does not move. `side(key)` returns rows at the right
    of the list, `side_width` cells wide.
    """

    keys: Sequence[Hashable | None]
    row: Callable[[int, bool], Row]
    head: Sequence[Row] = ()
    foot: Callable[[Any], list[Row]] | None = None
    side: Callable[[Any], list[Row]] | None = None
    side_width: int = 0


def text_lines(rows: Sequence[Row]) -> Lines:
    """Rows to scroll through; none can be selected."""
    return Lines([None] * len(rows), lambda n, selected: rows[n])


def sifted(lines: Lines, needle: str, width: int) -> Lines:
    """The lines that contain all words of `needle`; a note where there is none."""
    words = needle.casefold().split()
    kept = [
        n
        for n in range(len(lines.keys))
        if all(word in row_text(lines.row(n, False)) for word in words)
    ]
    if not kept:
        return text_lines([line(width, f"No line has {needle!r}; escape shows all.")])
    return lines._replace(
        keys=[lines.keys[n] for n in kept], row=lambda n, selected: lines.row(kept[n], selected)
    )


def row_text(row: Row) -> str:
    """The text of a row, to be searched without regard to case."""
    return "".join(part for part, _ in row).casefold()
