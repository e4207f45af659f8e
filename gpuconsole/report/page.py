"""Rows that scroll: the layout of the other screens."""

from __future__ import annotations

from gpuconsole.report import parts
from gpuconsole.report.cells import Row, fill, line, wrap


def window(rows: list[Row], offset: int, width: int, height: int) -> list[Row]:
    """`height` rows from `offset`."""
    return fill(rows[offset : offset + height], width, height)


def follow(offset: int, cursor: int, height: int, total: int) -> int:
    """The offset nearest to `offset` with which `cursor` is in sight, with one row of context where there is room."""
    if height <= 0:
        return 0
    margin = 1 if height >= 3 else 0
    offset = max(min(offset, cursor - margin), cursor - height + 1 + margin)
    return max(0, min(offset, total - height))


def heading(text: str, width: int) -> Row:
    return line(width, (text, "heading"))


def paragraph(text: str, width: int, style: str = "", indent: int = 0) -> list[Row]:
    return [line(width, (" " * indent + part, style)) for part in wrap(text, max(8, width - indent))]


def labelled(label: str, text: str, width: int, column: int = 12, style: str = "") -> list[Row]:
    """`label` at the left, the wrapped text in a column of its own. A label as long as its column has a row of its own."""
    bare = label.lstrip(" ")
    return parts.lay_out([parts.labelled(bare, text, style, column - (len(label) - len(bare)), len(label) - len(bare))], width)
