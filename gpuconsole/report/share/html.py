"""A shared report as one HTML page: no script, no font, no image and no request. All words from outside are escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from gpuconsole.model import units
from gpuconsole.model.text import clean, cut
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Line, Report, Table
from gpuconsole.report.run.account import LOOKS, NAMES
from gpuconsole.report.share import svg
from gpuconsole.report.share.document import (
    Bar,
    Block,
    Document,
    Folded,
    Ranges,
    Section,
    Steps,
    Tile,
    Tiles,
    Timeline,
    Verbatim,
    Waterfall,
    Words,
    code,
    compact,
    groups,
    joined,
    whole,
)
from gpuconsole.report.share.pair import part_words, step_parts
from gpuconsole.report.share.story import Answer

# --- the style sheet of the HTML page ------------------------------------------------------------------------

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --panel: #f5f6f8; --ink: #16191d; --dim: #5a626d; --rule: #dde1e6;
  --accent: #0a5cb8; --wait: #e3a21a; --wait-ink: #8a5a00; --work: #7b93ad; --good: #177a3c; --alert: #c0261f;
  --on-wait: #2b1d00; --on-work: #0c1622; --band: #eef1f5; --badge-ink: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101317; --panel: #181c22; --ink: #e6e9ed; --dim: #9aa4b0; --rule: #2b313a;
    --accent: #6cb2ff; --wait: #d99a1c; --wait-ink: #f0b94a; --work: #5f7c9b; --good: #4cc277; --alert: #ff7b72;
    --on-wait: #1d1400; --on-work: #ffffff; --band: #1b2129; --badge-ink: #101317;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1048px; margin: 0 auto; padding: 24px 24px 48px; overflow-wrap: anywhere; }
p, h1, h2, h3, li, td, th, dt, dd, summary, span, b, code { unicode-bidi: isolate; }
h1 { font-size: 30px; line-height: 1.2; margin: 4px 0 8px; }
h2 { font-size: 19px; line-height: 1.3; margin: 44px 0 12px; padding-top: 14px; border-top: 1px solid var(--rule); }
h3 { font-size: 16px; line-height: 1.4; margin: 24px 0 4px; display: flex; flex-wrap: wrap; gap: 0 16px; justify-content: space-between; }
h3 .right { font-weight: 400; }
h4 { font-size: 14px; font-weight: 600; margin: 24px 0 6px; }
p { margin: 4px 0; max-width: 80ch; }
.kicker { color: var(--dim); margin: 0; }
.label { display: inline-block; margin: 4px 8px 0 0; padding: 1px 10px; border: 1px solid var(--wait); border-radius: 11px; color: var(--wait-ink); font-size: 13px; }
.answer { background: var(--panel); border-left: 5px solid var(--rule); border-radius: 4px; padding: 14px 20px 16px; margin: 14px 0; }
.answer.wait { border-color: var(--wait); } .answer.good { border-color: var(--good); } .answer.alert { border-color: var(--alert); }
.answer h2 { font-size: 24px; margin: 4px 0 8px; padding: 0; border: 0; }
.answer p { max-width: none; }
.answer .cost { font-size: 18px; color: var(--wait-ink); margin: 0 0 8px; }
.answer.good .cost { color: var(--ink); }
.answer .fix { font-size: 17px; margin: 2px 0; }
.dim, .formula { color: var(--dim); } .accent { color: var(--accent); } .good { color: var(--good); } .alert { color: var(--alert); }
.title, .good, .alert { font-weight: 600; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 0 0 8px; }
.tile { flex: 1 1 220px; background: var(--panel); border-radius: 4px; padding: 12px 16px; }
.tile .name { color: var(--dim); font-size: 13px; }
.tile .value { font-size: 22px; line-height: 1.3; font-weight: 600; }
.tile .note { color: var(--dim); font-size: 13px; }
.facts { margin: 6px 0; }
.facts > div { display: grid; grid-template-columns: 130px 1fr; gap: 0 12px; padding: 1px 0; }
.facts dt { color: var(--dim); } .facts dd { margin: 0; }
.scroll { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 400; color: var(--dim); border-bottom: 1px solid var(--rule); padding: 4px 14px 4px 0; vertical-align: bottom; }
td { padding: 4px 14px 4px 0; vertical-align: top; border-bottom: 1px solid var(--rule); }
tr:last-child td { border-bottom: 0; }
th.number, td.number { text-align: right; white-space: nowrap; }
td:last-child, th:last-child { padding-right: 0; }
td, th { overflow-wrap: break-word; }
table.short td:first-child { white-space: nowrap; }
.gap { height: 12px; }
td.bar { color: var(--accent); font-size: 8px; letter-spacing: -1px; white-space: nowrap; vertical-align: middle; }
td.tree { white-space: pre-wrap; }
pre { background: var(--panel); border-radius: 4px; padding: 10px 14px; margin: 6px 0; overflow-x: auto; font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
details { margin: 10px 0; border: 1px solid var(--rule); border-radius: 4px; }
summary { cursor: pointer; padding: 8px 14px; font-weight: 600; }
details > div { padding: 0 14px 12px; }
figure { margin: 18px 0; }
figcaption { font-size: 14px; font-weight: 600; margin-bottom: 8px; }
figcaption small { font-size: 13px; font-weight: 400; color: var(--dim); }
svg { display: block; max-width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
.narrow { display: none; }
svg text { fill: var(--ink); } svg .tick { fill: var(--dim); } svg .figure { font-weight: 600; }
svg .grid { stroke: var(--rule); stroke-width: 1; } svg .reference { stroke: var(--dim); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg polyline { fill: none; stroke-width: 2; stroke-linejoin: round; } svg polyline.trace { stroke: var(--accent); } svg polyline.dim { stroke: var(--dim); }
svg .trace-dot { fill: var(--accent); } svg .dim-dot { fill: var(--dim); }
svg .band { fill: var(--band); } svg .mark { stroke: var(--good); stroke-width: 1.5; stroke-dasharray: 5 3; }
svg .badge { fill: var(--good); } svg .badge-text { fill: var(--badge-ink); font-weight: 600; font-size: 11px; }
svg rect.total { fill: var(--accent); } svg rect.page { fill: var(--page); } svg rect.wait { fill: var(--wait); } svg rect.work { fill: var(--work); }
svg text.on-wait { fill: var(--on-wait); } svg text.on-work { fill: var(--on-work); }
svg .predicted { fill: var(--dim); fill-opacity: .45; }
svg .interval { stroke: var(--accent); stroke-width: 2.5; } svg .estimate { fill: var(--accent); }
svg g.good .interval { stroke: var(--good); } svg g.good .estimate, svg g.good .figure { fill: var(--good); }
svg g.alert .interval { stroke: var(--alert); } svg g.alert .estimate { fill: var(--alert); }
table.legend-table { width: auto; font-size: 13px; margin-top: 4px; } table.legend-table td { padding: 1px 18px 1px 0; border: 0; }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px; vertical-align: -1px; }
.legend { list-style: none; margin: 6px 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 20px; font-size: 13px; }
.dense2 { opacity: .72; } .dense3 { opacity: .48; } .dense4 { opacity: .28; }
.swatch.wait { background: var(--wait); } .swatch.work { background: var(--work); } .swatch.trace { background: var(--accent); } .swatch.dim { background: var(--dim); }
.number-badge { display: inline-block; min-width: 18px; border-radius: 9px; background: var(--good); color: var(--badge-ink); text-align: center; font-size: 11px; font-weight: 600; margin-right: 6px; }
footer { margin-top: 40px; color: var(--dim); font-size: 13px; }
@media (max-width: 640px) {
  main { padding: 16px 16px 32px; }
  h1 { font-size: 23px; } h2 { margin-top: 28px; } .answer { padding: 12px 14px; } .answer .cost, .answer .fix { font-size: 16px; }
  .wide { display: none; } .narrow { display: block; }
  .facts > div { grid-template-columns: 1fr; padding: 4px 0; }
  .tile { flex-basis: 140px; padding: 10px 12px; } .tile .value { font-size: 19px; }
  table.cards thead { display: none; }
  table.cards tr { display: block; padding: 8px 0; border-bottom: 1px solid var(--rule); }
  table.cards td, table.cards td.number { display: block; border: 0; padding: 0; text-align: left; white-space: normal; max-width: none; }
  table.cards td.number { display: inline-block; margin-right: 14px; }
  table.cards td:first-child { display: block; font-weight: 600; }
  table.cards td[data-head]::before { content: attr(data-head) " "; color: var(--dim); font-weight: 400; }
  table.cards td:empty { display: none; }
}
@media print { details > summary { list-style: none; } h2 { break-after: avoid; } figure, .tile { break-inside: avoid; } }
"""
"""Colours have one meaning: amber waits, green is a gain, red needs action, blue is the measurement."""


# --- a shared report as one HTML page ------------------------------------------------------------------------

STYLES = ("title", "dim", "accent", "good", "alert")
"""Styles of segments that have a look of their own on the page."""
POLICY = f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; img-src data:"
"""The page forbids itself every request, every script and every other style sheet. A browser enforces it."""
CARDS = 4
"""On a phone, a table with at least so many columns shows each row as a card."""

LONGEST_TITLE, LONGEST_LINE = 65, 240
"""Letters of the title of the window, and of a line in the answer. The full text stands further down."""
SHORT = 24
"""The first column of a table stays on one line if its cells have at most so many letters."""


def html_page(document: Document) -> str:
    """The whole page."""
    title = _plain(cut(clean(document.title), LONGEST_TITLE))
    body = [f'<p class="kicker">{_plain(cut(clean(document.kicker), LONGEST_LINE))}</p>']
    body += [f'<span class="label">{_plain(words)}</span>' for words in document.labels]
    several = len(document.answers) > 1
    body += [_answer(title if several else "", answer, "h2" if n else "h1") for n, (title, answer) in enumerate(document.answers)]
    body += [_section(section) for section in document.sections]
    return (
        '<!DOCTYPE html>\n<html lang="en" dir="ltr">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + f"\n<footer>{_plain(document.foot)}</footer>\n</main>\n</body>\n</html>\n"
    )


def _plain(words: str) -> str:
    """Escaped text."""
    return escape(compact(words))


def _answer(title: str, found: Answer, heading: str) -> str:
    rows = [f'<p class="kicker">{_plain(title)}</p>'] if title else []
    rows.append(f"<{heading}>{_plain(cut(clean(found.headline), LONGEST_LINE))}</{heading}>")
    rows += [f'<p class="cost">{_plain(found.cost)}</p>'] if found.cost else []
    rows += [f'<p class="fix">{_segments(row)}</p>' for row in found.fixes]
    return f'<section class="answer {found.style}">{"".join(rows)}</section>'


def _section(section: Section) -> str:
    return f"<section>\n<h2>{_plain(section.title)}</h2>\n" + "\n".join(_block(block) for block in section.blocks) + "\n</section>"


def _block(block: Block | Folded) -> str:
    match block:
        case Folded():
            inside = "\n".join(_block(one) for one in block.blocks)
            return f"<details><summary>{_plain(block.title)}</summary><div>\n{inside}\n</div></details>"
        case Words() | Verbatim():
            return parts_html(block.parts)
        case Tiles():
            return f'<div class="tiles">{"".join(_tile(one) for one in block.tiles)}</div>'
        case Timeline():
            return _timeline(block)
        case Steps():
            return _steps(block)
        case Waterfall():
            return _figure(block.title, svg.both(lambda width: svg.waterfall_svg(block, width)), note=f"{_plain(block.note)}; amber: lost")
        case Ranges():
            return _figure(block.title, svg.both(lambda width: svg.ranges_svg(block, width)), _ranges_note(block))


# --- charts --------------------------------------------------------------------------------------------------


def _figure(title: str, chart: str, below: str = "", note: str = "") -> str:
    small = f" <small>{note}</small>" if note else ""
    return f"<figure><figcaption>{_plain(title)}{small}</figcaption>{chart}{below}</figure>"


def _tile(tile: Tile) -> str:
    before = f'<div class="note">{_plain(tile.before)} before</div>' if tile.before else ""
    note = f'<div class="note">{_plain(tile.note)}</div>' if tile.note else ""
    value = f'<div class="value {tile.style}">{_plain(tile.value)}</div>'
    return f'<div class="tile"><div class="name">{_plain(tile.label)}</div>{value}{before}{note}</div>'


def _timeline(chart: Timeline) -> str:
    if chart.missing:
        return _figure(chart.title, f'<p class="dim">{_plain(chart.missing)}</p>')
    rows = [
        f'<li><span class="number-badge">{number}</span>{units.clock(mark.t)} · {_plain(mark.words)}</li>'
        for number, mark in enumerate(chart.marks, 1)
    ]
    if len({trace.style for trace in chart.traces}) > 1:
        rows += [f'<li><span class="swatch {trace.style}"></span>{_plain(trace.label)}</li>' for trace in chart.traces]
    legend = f'<ul class="legend">{"".join(rows)}</ul>' if rows else ""
    return _figure(chart.title, svg.both(lambda width: svg.timeline_svg(chart, width)), legend, _plain(chart.unit))


def _steps(chart: Steps) -> str:
    if chart.missing:
        return _figure(chart.title, f'<p class="dim">{_plain(chart.missing)}</p>')
    several = len(chart.bars) > 1
    heads = "".join(f'<th scope="col" class="number" colspan="2">{_plain(bar.label)}</th>' for bar in chart.bars)
    head = f'<thead><tr><th scope="col"></th>{heads}</tr></thead>' if several else ""
    rows = [
        f"<tr><td>{_swatch(name)}{_plain(NAMES.get(name, name))}</td>{''.join(_part(bar, name) for bar in chart.bars)}</tr>"
        for name in step_parts(chart)
    ]
    legend = f'<div class="scroll"><table class="legend-table">{head}<tbody>{"".join(rows)}</tbody></table></div>'
    return _figure(chart.title, svg.both(lambda width: svg.steps_svg(chart, width)), legend, "amber: waiting; blue: work")


def _swatch(name: str) -> str:
    glyph, style = LOOKS[name]
    return f'<span class="swatch {style} {svg.DENSITIES[glyph]}"></span>'


def _part(bar: Bar, name: str) -> str:
    """The share and the time of a part, in two cells."""
    return "".join(f'<td class="number">{_plain(words)}</td>' for words in part_words(bar, name))


def _ranges_note(chart: Ranges) -> str:
    if chart.reference is None:
        return '<p class="dim">Line with a point: mean with its interval. Green: the highest rate.</p>'
    predicted = " Grey bar: predicted." if any(row.predicted for row in chart.rows) else ""
    return f'<p class="dim">Line with a point: measured, 95 % interval.{predicted} Dashed line: no change (1x).</p>'


# --- text parts ----------------------------------------------------------------------------------------------


def parts_html(report: Report) -> str:
    """Text parts: sentences, lists of labelled facts, code and tables."""
    found = []
    for group in groups(report):
        if isinstance(group, Table):
            found.append(_table(group))
            continue
        kind, lines = group
        if kind == "facts":
            found.append(f'<dl class="facts">{_facts(lines)}</dl>')
        elif kind == "code":
            found.append(f"<pre><code>{escape(chr(10).join(map(code, lines)))}</code></pre>")
        elif kind == "blank":
            found.append('<div class="gap"></div>')
        elif kind == "heading":
            found += [_heading(one) for one in lines]
        else:
            found += [f"<p>{_segments(whole(one))}</p>" for one in lines]
    return "\n".join(found)


def _facts(lines: Iterable[Line]) -> str:
    """Labelled lines; a line with an empty label belongs to the label above it."""
    rows: list[tuple[str, list[str]]] = []
    for one in lines:
        words = _segments(whole(one))
        if one.label.strip() or not rows:
            rows.append((one.label, [words]))
        else:
            rows[-1][1].append(words)
    return "".join(f"<div><dt>{_plain(label)}</dt>{''.join(f'<dd>{one}</dd>' for one in words)}</div>" for label, words in rows)


def _heading(line: Line) -> str:
    right = f'<span class="right">{_segments(line.right)}</span>' if line.right else ""
    return f"<h3><span>{_segments(line.segments)}</span>{right}</h3>"


def _segments(segments: Sequence[Segment]) -> str:
    return joined(segments, lambda words, style: f'<span class="{style}">{_plain(words)}</span>' if style in STYLES else _plain(words))


def _table(table: Table) -> str:
    """A table. A column of which every cell is empty is left out."""
    kept = [n for n, column in enumerate(table.columns) if column.head.strip() or any(clean(row[n][0]).strip() for row in table.rows)]
    columns = [table.columns[n] for n in kept]
    heads = "".join(f'<th scope="col"{_aligned(column.align)}>{_plain(column.head)}</th>' for column in columns)
    head = f"<thead><tr>{heads}</tr></thead>" if table.heads else ""
    rows = []
    for row in table.rows:
        cells = [_cell(row[n], table.columns[n].head, table.columns[n].align, first=place == 0) for place, n in enumerate(kept)]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    short = all(len(clean(row[n][0])) <= SHORT for row in table.rows for n in kept[:1])
    kind = f' class="{"cards" if len(kept) >= CARDS else "short"}"' if len(kept) >= CARDS or short else ""
    return f'<div class="scroll"><table{kind}>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _aligned(align: str, kind: str = "") -> str:
    names = " ".join(filter(None, ("number" if align == ">" else "", kind)))
    return f' class="{names}"' if names else ""


def _cell(cell: Segment, head: str, align: str, first: bool) -> str:
    words, style = cell
    shown = clean(words)
    bar = set(shown.strip()) == {"█"}
    tree = "─ " in shown
    kind = " ".join(filter(None, (style if style in STYLES else "", "bar" if bar else "tree" if tree else "")))
    named = f' data-head="{_plain(head)}"' if head.strip() and not first and not bar else ""
    inside = escape(shown.rstrip()) if tree else _plain(shown)
    return f"<td{_aligned(align, kind)}{named}>{inside}</td>"
