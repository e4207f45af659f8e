"""Rows that scroll: what the other screens are made of."""

from __future__ import annotations

from gpuconsole.report.cells import Row, fill, line, wrap

Lines = list[Row]


def window(rows: list[Row], offset: int, width: int, height: int) -> list[Row]:
    """`height` rows from `offset`."""
    return fill(rows[offset : offset + height], width, height)


def follow(offset: int, cursor: int, height: int, total: int) -> int:
    """The offset nearest to `offset` that has `cursor` in sight, with a row of context where there is one."""
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
    """`label` at the left, the wrapped text in a column of its own."""
    parts = wrap(text, max(8, width - column)) or [""]
    return [line(width, (f"{label if n == 0 else '':<{column}}", "dim"), (part, style)) for n, part in enumerate(parts)]
