"""A shared report as one HTML page: no script, no font, no image and no request. All texts from
outside are escaped.

`page.html` is the frame with the style sheet. Its policy forbids every request, every script and
every other style sheet; a browser enforces the policy. Colours have one meaning: amber waits, green
is a gain, red needs action, blue is the measurement.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from gpuconsole.model import units
from gpuconsole.model.text import clean, cut
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Line, Report, Table
from gpuconsole.report.run.breakdown import LOOKS, NAMES
from gpuconsole.report.share import svg
from gpuconsole.report.share.document import (
    LAYER_HEADS,
    Bar,
    Block,
    Document,
    FigureTile,
    Folded,
    Layers,
    Ranges,
    Section,
    StepBars,
    StoryAnswer,
    TextBlock,
    Tiles,
    Timeline,
    Verbatim,
    Waterfall,
    code,
    compact,
    groups,
    joined,
    whole,
)

STYLES = ("title", "dim", "accent", "good", "alert")
"""Styles of segments that have a look of their own on the page."""
CARDS = 4
"""On a phone, a table with at least so many columns shows each row as a card."""

MAX_TITLE_LENGTH = 65
MAX_LINE_LENGTH = 240
"""Letters of the title of the window, and of a line in the answer. The full text stands further
down."""
SHORT = 24
"""The first column of a table stays on one line if its cells have at most so many letters."""


def html_page(document: Document) -> str:
    """The whole page."""
    title = _plain(cut(clean(document.title), MAX_TITLE_LENGTH))
    body = [f'<p class="kicker">{_plain(cut(clean(document.kicker), MAX_LINE_LENGTH))}</p>']
    body += [f'<span class="label">{_plain(label)}</span>' for label in document.labels]
    several = len(document.answers) > 1
    body += [
        _answer(title if several else "", answer, "h2" if n else "h1")
        for n, (title, answer) in enumerate(document.answers)
    ]
    body += [_section(section) for section in document.sections]
    template = files("gpuconsole.report.share").joinpath("page.html").read_text(encoding="utf-8")
    style = template.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return Template(template).substitute(
        style_hash=f"sha256-{digest}", title=title, body="\n".join(body), foot=_plain(document.foot)
    )


def _plain(text: str) -> str:
    """Escaped text."""
    return escape(compact(text))


def _answer(title: str, answer: StoryAnswer, heading: str) -> str:
    rows = [f'<p class="kicker">{_plain(title)}</p>'] if title else []
    rows.append(f"<{heading}>{_plain(cut(clean(answer.headline), MAX_LINE_LENGTH))}</{heading}>")
    rows += [f'<p class="cost">{_plain(answer.cost)}</p>'] if answer.cost else []
    rows += [f'<p class="fix">{_segments(row)}</p>' for row in answer.fixes]
    return f'<section class="answer {answer.style}">{"".join(rows)}</section>'


def _section(section: Section) -> str:
    return (
        f"<section>\n<h2>{_plain(section.title)}</h2>\n"
        + "\n".join(_block(block) for block in section.blocks)
        + "\n</section>"
    )


def _block(block: Block | Folded) -> str:
    match block:
        case Folded():
            inside = "\n".join(map(_block, block.blocks))
            return (
                f"<details><summary>{_plain(block.title)}</summary><div>\n{inside}\n"
                "</div></details>"
            )
        case TextBlock() | Verbatim():
            return parts_html(block.parts)
        case Tiles():
            return f'<div class="tiles">{"".join(map(_tile, block.tiles))}</div>'
        case Timeline():
            return _timeline(block)
        case Layers():
            return _layers(block)
        case StepBars():
            return _steps(block)
        case Waterfall():
            return _figure(
                block.title,
                svg.both(lambda width: svg.waterfall_svg(block, width)),
                note=f"{_plain(block.note)}; amber: lost",
            )
        case Ranges():
            return _figure(
                block.title,
                svg.both(lambda width: svg.ranges_svg(block, width)),
                _ranges_note(block),
            )


# --- charts ---------------------------------------------------------------------------------------


def _figure(title: str, chart: str, below: str = "", note: str = "") -> str:
    small = f" <small>{note}</small>" if note else ""
    return f"<figure><figcaption>{_plain(title)}{small}</figcaption>{chart}{below}</figure>"


def _tile(tile: FigureTile) -> str:
    before = f'<div class="note">{_plain(tile.before)} before</div>' if tile.before else ""
    note = f'<div class="note">{_plain(tile.note)}</div>' if tile.note else ""
    value = f'<div class="value {tile.style}">{_plain(tile.value)}</div>'
    return (
        f'<div class="tile"><div class="name">{_plain(tile.label)}</div>{value}{before}{note}</div>'
    )


def _timeline(chart: Timeline) -> str:
    if chart.missing:
        return _figure(chart.title, f'<p class="dim">{_plain(chart.missing)}</p>')
    rows = [
        (
            f'<li><span class="number-badge">{number}</span>{units.clock(mark.t)} ·'
            f" {_plain(mark.change)}</li>"
        )
        for number, mark in enumerate(chart.marks, 1)
    ]
    if len({trace.style for trace in chart.traces}) > 1:
        rows += [
            f'<li><span class="swatch {trace.style}"></span>{_plain(trace.label)}</li>'
            for trace in chart.traces
        ]
    legend = f'<ul class="legend">{"".join(rows)}</ul>' if rows else ""
    return _figure(
        chart.title,
        svg.both(lambda width: svg.timeline_svg(chart, width)),
        legend,
        _plain(chart.unit),
    )


def _layers(chart: Layers) -> str:
    """The chart, and a table with a row for each layer, the topmost first."""
    head = "".join(f'<th scope="col" class="number">{_plain(name)}</th>' for name in LAYER_HEADS)
    rows = []
    for trace in (*reversed(chart.layers), *chart.extra):
        label, *figures = chart.row(trace)
        swatch = f'<span class="swatch {trace.style}"></span>' if trace in chart.layers else ""
        cells = "".join(f'<td class="number">{_plain(figure)}</td>' for figure in figures)
        rows.append(f"<tr><td>{swatch}{_plain(label)}</td>{cells}</tr>")
    legend = (
        f'<div class="scroll"><table class="legend-table"><thead><tr>{head}</tr></thead><tbody>'
        f"{''.join(rows)}</tbody></table></div>"
    )
    return _figure(chart.title, svg.both(lambda width: svg.layers_svg(chart, width)), legend)


def _steps(chart: StepBars) -> str:
    if chart.missing:
        return _figure(chart.title, f'<p class="dim">{_plain(chart.missing)}</p>')
    several = len(chart.bars) > 1
    heads = "".join(
        f'<th scope="col" class="number" colspan="2">{_plain(bar.label)}</th>' for bar in chart.bars
    )
    head = f'<thead><tr><th scope="col"></th>{heads}</tr></thead>' if several else ""
    rows = [
        (
            f"<tr><td>{_swatch(name)}{_plain(NAMES.get(name, name))}</td>"
            f"{''.join(_part(bar, name) for bar in chart.bars)}</tr>"
        )
        for name in chart.names
    ]
    legend = (
        f'<div class="scroll"><table class="legend-table">{head}<tbody>{"".join(rows)}</tbody></'
        "table></div>"
    )
    return _figure(
        chart.title,
        svg.both(lambda width: svg.steps_svg(chart, width)),
        legend,
        "amber: waiting; blue and violet: work",
    )


def _swatch(name: str) -> str:
    glyph, style = LOOKS[name]
    return f'<span class="swatch {style} {svg.DENSITIES[glyph]}"></span>'


def _part(bar: Bar, name: str) -> str:
    """The share and the time of a part, in two cells."""
    return "".join(f'<td class="number">{_plain(figure)}</td>' for figure in bar.figures(name))


def _ranges_note(chart: Ranges) -> str:
    if chart.reference is None:
        return (
            '<p class="dim">Line with a point: mean with its interval. Green: the highest rate.</p>'
        )
    predicted = " Grey bar: predicted." if any(row.predicted for row in chart.rows) else ""
    return (
        f'<p class="dim">Line with a point: measured, 95 % interval.{predicted} Dashed line: no'
        " change (1x).</p>"
    )


# --- text parts -----------------------------------------------------------------------------------


def parts_html(report: Report) -> str:
    """Text parts: sentences, lists of labelled facts, code and tables."""
    texts = []
    for group in groups(report):
        if isinstance(group, Table):
            texts.append(_table(group))
            continue
        kind, lines = group
        if kind == "facts":
            texts.append(f'<dl class="facts">{_facts(lines)}</dl>')
        elif kind == "code":
            texts.append(f"<pre><code>{escape(chr(10).join(map(code, lines)))}</code></pre>")
        elif kind == "blank":
            texts.append('<div class="gap"></div>')
        elif kind == "heading":
            texts += map(_heading, lines)
        else:
            texts += [f"<p>{_segments(whole(line))}</p>" for line in lines]
    return "\n".join(texts)


def _facts(lines: Iterable[Line]) -> str:
    """Labelled lines; a line with an empty label belongs to the label above it."""
    rows: list[tuple[str, list[str]]] = []
    for line in lines:
        text = _segments(whole(line))
        if line.label.strip() or not rows:
            rows.append((line.label, [text]))
        else:
            rows[-1][1].append(text)
    return "".join(
        f"<div><dt>{_plain(label)}</dt>{''.join(f'<dd>{text}</dd>' for text in texts)}</div>"
        for label, texts in rows
    )


def _heading(line: Line) -> str:
    right = f'<span class="right">{_segments(line.right)}</span>' if line.right else ""
    return f"<h3><span>{_segments(line.segments)}</span>{right}</h3>"


def _segments(segments: Sequence[Segment]) -> str:
    return joined(
        segments,
        lambda text, style: (
            f'<span class="{style}">{_plain(text)}</span>' if style in STYLES else _plain(text)
        ),
    )


def _table(table: Table) -> str:
    """A table. A column of which every cell is empty is left out."""
    kept = [
        n
        for n, column in enumerate(table.columns)
        if column.head.strip() or any(clean(row[n][0]).strip() for row in table.rows)
    ]
    columns = [table.columns[n] for n in kept]
    heads = "".join(
        f'<th scope="col"{_aligned(column.align)}>{_plain(column.head)}</th>' for column in columns
    )
    head = f"<thead><tr>{heads}</tr></thead>" if table.heads else ""
    rows = []
    for row in table.rows:
        cells = [
            _cell(row[n], table.columns[n].head, table.columns[n].align, first=place == 0)
            for place, n in enumerate(kept)
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    short = all(len(clean(row[n][0])) <= SHORT for row in table.rows for n in kept[:1])
    kind = (
        f' class="{"cards" if len(kept) >= CARDS else "short"}"'
        if len(kept) >= CARDS or short
        else ""
    )
    return f'<div class="scroll"><table{kind}>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _aligned(align: str, kind: str = "") -> str:
    names = " ".join(filter(None, ("number" if align == ">" else "", kind)))
    return f' class="{names}"' if names else ""


def _cell(cell: Segment, head: str, align: str, first: bool) -> str:
    text, style = cell
    shown = clean(text)
    bar = set(shown.strip()) == {"█"}
    tree = "─ " in shown
    kind = " ".join(
        filter(None, (style if style in STYLES else "", "bar" if bar else "tree" if tree else ""))
    )
    named = f' data-head="{_plain(head)}"' if head.strip() and not first and not bar else ""
    inside = escape(shown.rstrip()) if tree else _plain(shown)
    return f"<td{_aligned(align, kind)}{named}>{inside}</td>"
