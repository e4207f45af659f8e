"""Rows of cells, the one shape that every report has on the screen; sparklines; and the colours of
a row in a terminal.

A row is a list of (text, style name). `line` makes every row: it makes control characters visible,
cuts and pads the text, so that a row has exactly the requested width for any text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from gpuconsole.model.text import cell_width, char_width, clean, cut

# --- rows of cells --------------------------------------------------------------------------------

Segment = tuple[str, str]
Row = list[Segment]

_ASCII = str.maketrans(
    "▁▂▃▄▅▆▇█▓▒░▀▌▐▖▗▘▝▚▞▙▛▜▟━╎─│╭╮╰╯├┤┼┌┐└┘┬┴…±–→µ°·●▸›×✓▔▼↓",
    "..--==##%+:###..''######=:-|++++||+++++++~~->u .*>>x+-vv",
)


def fit(text: str, width: int, align: str = "<") -> str:
    """`text` in exactly `width` cells, `align`ed as in a format: `<` or `>`."""
    text = cut(clean(text), width)
    pad = " " * (width - cell_width(text))
    return pad + text if align == ">" else text + pad


def line(width: int, *segments: Segment | str) -> Row:
    """A row of exactly `width` cells."""
    row: Row = []
    left = width
    for segment in segments:
        text, style = (segment, "") if isinstance(segment, str) else segment
        text = cut(clean(text), left)
        if text:
            row.append((text, style))
            left -= cell_width(text)
        if left <= 0:
            break
    if left > 0:
        row.append((" " * left, ""))
    return row


def spread(width: int, left: Iterable[Segment], right: Iterable[Segment]) -> Row:
    """`left` at the left edge and `right` at the right edge. Where both do not fit, `left` is
    cut."""
    end = line_of(right)
    room = width - row_width(end)
    if room <= 0:
        return line(width, *end)
    return line(room, *left) + end


def line_of(segments: Iterable[Segment]) -> Row:
    """The segments, cleaned: a row as wide as its text."""
    return [(clean(text), style) for text, style in segments if text]


def row_width(row: Row) -> int:
    return sum(cell_width(text) for text, _ in row)


def blank(width: int) -> Row:
    return [(" " * width, "")] if width > 0 else []


def fill(rows: list[Row], width: int, height: int) -> list[Row]:
    """Exactly `height` rows."""
    return rows[:height] + [blank(width) for _ in range(height - len(rows))]


def wrap(text: str, width: int, limit: int = 1000) -> list[str]:
    """`text` in at most `limit` lines of at most `width` cells. If text is cut off, the last line
    ends in an ellipsis."""
    lines: list[str] = []
    words = [
        part for word in clean(" ".join(text.split())).split(" ") for part in pieces(word, width)
    ]
    current = ""
    for word in words:
        joined = f"{current} {word}" if current else word
        if current and cell_width(joined) > width:
            lines.append(cut(current, width))
            current = word
        else:
            current = joined
    if current:
        lines.append(cut(current, width))
    if len(lines) > limit:
        lines = [*lines[: limit - 1], cut(" ".join(lines[limit - 1 :]), width)]
    return lines


def pieces(text: str, width: int) -> list[str]:
    """`text` in parts of at most `width` cells: a long path is not cut."""
    if len(text) <= width and text.isascii():
        return [text]
    parts, used = [""], 0
    for char in text:
        size = char_width(char)
        if used + size > width and used:
            parts.append("")
            used = 0
        parts[-1] += char
        used += size
    return parts


def beside(*panels: list[Row]) -> list[Row]:
    """Panels of equal height, side by side."""
    return [[segment for row in rows for segment in row] for rows in zip(*panels, strict=True)]


def panel(
    title: str, right: list[Segment], rows: list[Row], width: int, height: int, boxed: bool
) -> list[Row]:
    """`rows` under a titled rule, or in a box. `rows` must be `inner_width` wide.

    The text at the right of the rule is the figure of the panel. Where both do not fit, the title
    is cut.
    """
    if height <= 0:
        return []
    left_end, right_end = ("╭", "╮") if boxed else ("", "")
    figure = line_of(right)
    figure = [(" ", ""), *figure, (" ", ""), ("─", "dim")] if figure else []
    room = width - len(left_end) - len(right_end)
    if row_width(figure) > room:
        figure = []
    room -= row_width(figure)
    # one cell too narrow: the title gets the cell, not the rule
    if figure and cell_width(clean(title)) == room - 2:
        figure, room = figure[:-1], room + 1
    name = cut(clean(title), max(0, room - 3))
    head: Row = (
        [(f"{left_end}─ ", "dim"), (name, "title"), (" ", "")] if room >= 4 else [(left_end, "dim")]
    )
    head = [part for part in head if part[0]]
    rule = width - row_width(head) - row_width(figure) - len(right_end)
    top = [*head, ("─" * rule, "dim"), *figure, (right_end, "dim")]
    top = [part for part in top if part[0]]
    if not boxed:
        return [top, *fill(rows, width, height - 1)]
    body = fill(rows, width - 4, height - 2)
    foot: Row = [("╰" + "─" * (width - 2) + "╯", "dim")]
    return ([top] + [[("│ ", "dim"), *row, (" │", "dim")] for row in body] + [foot])[:height]


def inner_width(width: int, boxed: bool) -> int:
    return width - 4 if boxed else width


def to_ascii(row: Row) -> Row:
    """The row for a terminal that cannot show UTF-8. Each cell becomes one ASCII cell."""
    return [(_ascii(text), style) for text, style in row]


def _ascii(text: str) -> str:
    if text.isascii():
        return text
    text = text.translate(_ASCII)
    return "".join(char if char.isascii() else "?" * char_width(char) for char in text)


# --- sparklines of block characters ---------------------------------------------------------------

LEVELS = " ▁▂▃▄▅▆▇█"


def spark(
    values: Sequence[float | None],
    height: int = 1,
    high: float | None = None,
    *,
    apart: bool = False,
) -> list[str]:
    """`height` texts, top first, one column for each value, from 0 to `high` (None: the largest
    value).

    A column without a sample is empty. A sample of zero shows the lowest block, so that it differs
    from a missing sample. `apart`: the top eighth of the first text stays blank, so that histories
    in neighbouring rows do not merge.
    """
    present = [value for value in values if value is not None]
    top = high if high is not None else max(present, default=0.0)
    if not values:
        return [""] * height
    columns = [_column(_steps(value, top, height * 8 - apart), height) for value in values]
    return ["".join(cells) for cells in zip(*columns, strict=True)]


SHADES = ("low", "middle", "high")
MIDDLE = 0.5
HIGH = 0.85
"""The styles of a history, from its foot to the top of its scale, and the shares of the scale from
which on the second and the third hold."""


def shade(share: float) -> str:
    """The style of a part of a history at `share` of its scale."""
    return SHADES[(share >= MIDDLE) + (share >= HIGH)]


def shaded(texts: Sequence[str]) -> list[Row]:
    """The texts of `spark`, brighter where the value is higher. A row has one style, so that it
    costs few bytes; where there is one row, its letters have one of two."""
    if len(texts) > 1:
        return [
            [(text, shade((len(texts) - n - 0.5) / len(texts)))] for n, text in enumerate(texts)
        ]
    return [list(_by_letter(text)) for text in texts]


@lru_cache(512)
def _by_letter(text: str) -> tuple[Segment, ...]:
    """The parts of one shade. A blank has the shade of the letter before it."""
    row: Row = []
    for char in text:
        style = SHADES[LEVELS.find(char) / (len(LEVELS) - 1) >= MIDDLE]
        if row and (char == " " or row[-1][1] == style):
            row[-1] = (row[-1][0] + char, row[-1][1])
        else:
            row.append((char, style))
    return tuple(row)


@lru_cache(4096)
def _column(steps: int, height: int) -> str:
    """A column of `height` cells, top first, filled to `steps` eighths of a cell."""
    return "".join(LEVELS[max(0, min(8, steps - 8 * level))] for level in range(height - 1, -1, -1))


def _steps(value: float | None, top: float, most: int) -> int:
    """The height of a column in eighths of a cell."""
    if value is None:
        return 0
    if top <= 0:
        return 1
    return max(1, min(most, round(value / top * most)))


# --- colours of text in a terminal ----------------------------------------------------------------

Paint = Callable[[str, str], str]
"""Text and the name of its style, to the text as it is printed."""

SGR = {
    "dim": "2",
    "title": "1",
    "heading": "1",
    "code": "1",
    "accent": "36",
    "key": "1;36",
    "mark": "1;7",
    "good": "1;32",
    "wait": "33",
    "loss": "1;33",
    "alert": "1;31",
    "work": "90",
}
"""Parameters of the escape sequence of each style. A style without one has no colour."""


def plain(text: str, style: str) -> str:
    """The text without colours."""
    return text


def ansi(text: str, style: str) -> str:
    """The text in the colour of `style`. Blanks around the text stay plain."""
    shown = text.strip(" ")
    if style not in SGR or not shown:
        return text
    before, _, after = text.partition(shown)
    return f"{before}\x1b[{SGR[style]}m{shown}\x1b[m{after}"


def shorter(change: str, width: int) -> str:
    """The description of a change in `width` cells, without the old values if there is no room for
    them."""
    return change if len(change) <= width else re.sub(r"\S+ -> ", "", change)


def spans(devices: Iterable[str]) -> str:
    """`gpu:0-3,5` for the ids of devices, in the order of their numbers."""
    texts: list[str] = []
    before = ""
    for head, low, high in _runs(sorted(_parts(device) for device in devices)):
        number = f"{low}-{high}" if high > low else str(low) if low >= 0 else ""
        texts.append(
            f"{',' if texts else ''}{number}"
            if head == before and number
            else f"{' ' if texts else ''}{head}{number}"
        )
        before = head
    return "".join(texts)


def _parts(device: str) -> tuple[str, int]:
    """`gpu:` and 3. -1: the id has no number."""
    head, colon, tail = device.rpartition(":")
    return (head + colon, int(tail)) if tail.isdecimal() else (device, -1)


def _runs(parts: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    """Ranges of consecutive numbers with the same prefix."""
    run: tuple[str, int, int] | None = None
    for head, number in parts:
        if run is not None and head == run[0] and number == run[2] + 1 and number > 0:
            run = (head, run[1], number)
            continue
        if run is not None:
            yield run
        run = (head, number, number)
    if run is not None:
        yield run
