"""The parts of a report, and their two layouts: rows of a given width for the screen, lines for the
terminal.

A report is defined once, as a list of parts. `lay_out` fits it into a width: sentences wrap, tables
drop their least important columns. `printed` gives each part all the width that it needs, as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpuconsole.model.text import cell_width, clean
from gpuconsole.report.cells import (
    Paint,
    Row,
    Segment,
    fit,
    line,
    line_of,
    plain,
    row_width,
    spread,
)

GAP = "  "


class Line(NamedTuple):
    """A sentence, or figures in a row.

    `label` is shown before the segments in a column of `column` cells. `right` is shown at the
    right edge of the screen if there is room after the segments. Rows after the first row are
    indented by `hang` more cells.
    """

    segments: Sequence[Segment]
    label: str = ""
    column: int = 14
    right: Sequence[Segment] = ()
    indent: int = 0
    hang: int = 2


class Column(NamedTuple):
    """A column of a table.

    `least`: minimum width in cells; 0: the column keeps its natural width. `drop`: if the table is
    too wide, columns are removed in the order of this number, the highest first; 0: the column is
    never removed.
    """

    head: str
    align: str = "<"
    least: int = 0
    drop: int = 0


class Table(NamedTuple):
    """A table: each row has one cell per column. Each row is indented by `indent` cells."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Segment]]
    indent: int = 0
    heads: bool = True


Part = Line | Table
Report = list[Part]
BLANK = Line(())


def text(sentence: str, style: str = "", indent: int = 0) -> Line:
    """A sentence."""
    return Line([(sentence, style)], indent=indent, hang=0)


def heading(title: str) -> Line:
    return Line([(title, "heading")])


def labelled(
    label: str, content: str | Sequence[Segment], style: str = "", column: int = 14, indent: int = 0
) -> Line:
    return Line(
        [(content, style)] if isinstance(content, str) else content, label, column, indent=indent
    )


# --- for the screen -------------------------------------------------------------------------------


def lay_out(report: Iterable[Part], width: int) -> list[Row]:
    """Rows of exactly `width` cells."""
    rows: list[Row] = []
    for part in report:
        rows += _table_rows(part, width) if isinstance(part, Table) else _line_rows(part, width)
    return rows


def _line_rows(part: Line, width: int) -> list[Row]:
    head: Row = [(" " * part.indent, "")] if part.indent else []
    column = part.indent
    rows: list[Row] = []
    if part.label:
        column += min(part.column, max(8, width // 3))
        room = column - part.indent
        # a label as long as its column has a separate row
        if cell_width(clean(part.label)) + 1 > room:
            rows.append(line(width, *head, (part.label, "dim")))
            head = [(" " * column, "")]
        else:
            head = [*head, (fit(part.label, room), "dim")]
    body, right = line_of(part.segments), line_of(part.right)
    if right and row_width(head) + row_width(body) + row_width(right) + len(GAP) <= width:
        return [*rows, spread(width, [*head, *body], right)]
    rows += wrapped(body, width, head, column if part.label else part.indent + part.hang)
    return [*rows, spread(width, [], right)] if right else rows


def wrapped(body: Row, width: int, head: Row, column: int) -> list[Row]:
    """`body` after `head`, broken between words; rows after the first begin at `column`."""
    rows: list[Row] = []
    current, left = list(head), width - row_width(head)
    begun = False
    for word, style in _words(body):
        size = cell_width(word)
        if size > left and begun:
            rows.append(line(width, *current))
            current, left, begun = [(" " * column, "")], width - column, False
            word = word.lstrip(" ")
            size = cell_width(word)
        # a word longer than a row, such as a path, is split and not cut
        while size > left and left > 0:
            piece = _first_cells(word, left)
            rows.append(line(width, *current, (piece, style)))
            word = word[len(piece) :]
            current, left = [(" " * column, "")], width - column
            size = cell_width(word)
            if not piece:
                break
        if word:
            current.append((word, style))
            left -= size
            begun = True
    return [*rows, line(width, *current)]


def _words(body: Row) -> Iterable[Segment]:
    """Each word with the blanks before it."""
    for part, style in body:
        start = 0
        for n in range(1, len(part)):
            if part[n] == " " and part[n - 1] != " ":
                yield part[start:n], style
                start = n
        if part:
            yield part[start:], style


def _first_cells(text: str, width: int) -> str:
    used = 0
    for n, char in enumerate(text):
        used += cell_width(char)
        if used > width:
            return text[:n]
    return text


def _table_rows(table: Table, width: int) -> list[Row]:
    kept = list(range(len(table.columns)))
    widths = _widths(table)
    room = width - table.indent

    def total() -> int:
        return sum(widths[n] for n in kept) + len(GAP) * (len(kept) - 1)

    def least() -> int:
        return total() - sum(
            max(0, widths[n] - table.columns[n].least) for n in kept if table.columns[n].least
        )

    while least() > room:
        droppable = [n for n in kept if table.columns[n].drop]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda n: table.columns[n].drop))
    for n in reversed(kept):  # the last columns shrink first
        if table.columns[n].least:
            widths[n] = max(
                min(widths[n], table.columns[n].least), widths[n] - max(0, total() - room)
            )
    return [line(width, *row) for row in _table_lines(table, kept, widths)]


def _widths(table: Table) -> list[int]:
    rows = [[clean(cell) for cell, _ in row] for row in table.rows]
    heads = [column.head if table.heads else "" for column in table.columns]
    return [max(cell_width(row[n]) for row in [heads, *rows]) for n in range(len(heads))]


def _table_lines(table: Table, kept: list[int], widths: list[int]) -> Iterable[Row]:
    heads = [(column.head, "dim") for column in table.columns]
    for row in [heads, *table.rows] if table.heads else table.rows:
        cells: Row = [(" " * table.indent, "")] if table.indent else []
        for place, n in enumerate(kept):
            cell, style = row[n]
            cells += ([(GAP, "")] if place else []) + [
                (fit(cell, widths[n], table.columns[n].align), style)
            ]
        yield cells


# --- for the terminal -----------------------------------------------------------------------------


def printed(report: Iterable[Part], indent: int = 0, paint: Paint = plain) -> str:
    """Text, a line for each row, without control characters except those of `paint`."""
    rows: list[str] = []
    for part in report:
        if isinstance(part, Table):
            rows += [
                _joined(row, paint)
                for row in _table_lines(part, list(range(len(part.columns))), _widths(part))
            ]
        else:
            label = paint(f"{clean(part.label):<{part.column - 1}} ", "dim") if part.label else ""
            after = GAP + _joined(line_of(part.right), paint) if part.right else ""
            rows.append(" " * part.indent + label + _joined(line_of(part.segments), paint) + after)
    return "\n".join((" " * indent + row).rstrip() for row in rows)


def _joined(row: Row, paint: Paint) -> str:
    return "".join(paint(text, style) for text, style in row)
