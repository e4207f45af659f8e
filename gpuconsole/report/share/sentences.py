"""What HTML and Markdown have in common: the kinds of parts, and the words of a sentence in their styles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Literal

from gpuconsole.report.cells import Segment, clean
from gpuconsole.report.parts import Line, Part, Report, Table

Kind = Literal["facts", "blank", "code", "heading", "line"]


def groups(report: Report) -> Iterator[Table | tuple[Kind, list[Line]]]:
    """Each table, and consecutive lines of one kind."""
    for kind, parts in groupby(report, _kind):
        if kind == "table":
            yield from (part for part in parts if isinstance(part, Table))
        else:
            yield kind, [part for part in parts if isinstance(part, Line)]


def _kind(part: Part) -> Kind | Literal["table"]:
    if isinstance(part, Table):
        return "table"
    if part.label:
        return "facts"
    if not part.segments and not part.right:
        return "blank"
    if part.segments and part.segments[0][1] == "heading":
        return "heading"
    return "code" if all(style == "code" for _, style in part.segments) else "line"


def whole(part: Line) -> list[Segment]:
    """The segments of a line, and the segments that the screen shows at its right edge."""
    return [*part.segments, *([("  ", ""), *part.right] if part.right else [])]


def code(part: Line) -> str:
    """The text of a line of code."""
    return "".join(clean(words) for words, _ in part.segments)


def compact(words: str) -> str:
    """`words` without control characters. A wide gap between two figures becomes a point, because a page collapses blanks."""
    return re.sub(r" {2,}", " · ", clean(words).strip())


def joined(segments: Sequence[Segment], show: Callable[[str, str], str]) -> str:
    """The segments as `show(words, style)` writes each. Blanks at the border of two segments stand outside of the styles."""
    found: list[str] = []
    gap = ""
    for words, style in segments:
        shown = clean(words)
        bare = shown.strip()
        gap += shown[: len(shown) - len(shown.lstrip())] if bare else shown
        if not bare:
            continue
        if found:
            found.append(" · " if len(gap) > 1 else gap)
        found.append(show(bare, style))
        gap = shown[len(shown.rstrip()) :]
    return "".join(found)
