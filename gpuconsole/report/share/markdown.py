"""A shared report as Markdown, for an issue tracker (GitHub, GitLab). Words from outside are escaped, so that they stay text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from gpuconsole.model import units
from gpuconsole.model.text import clean
from gpuconsole.report.cells import Segment, spark
from gpuconsole.report.parts import Line, Report, Table, printed
from gpuconsole.report.run.account import NAMES
from gpuconsole.report.share.document import (
    Block,
    Document,
    Folded,
    Ranges,
    Steps,
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
from gpuconsole.report.share.timeline import usual_step

MOST = 65_000
"""Characters. GitHub takes 65 536 in an issue or a comment, GitLab takes more."""
COLUMNS, ROWS = 72, 4
"""The largest width and the height of the chart in letters."""
BOLD = ("title", "good", "alert", "heading")
_SPECIAL = re.compile(r"[\\`*\[\]<|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=[A-Za-z#])|:(?=//)|(?<=www)\.")
_MENTION = re.compile(r"[@#](?=\w)")
BROKEN = r"\g<0>&#8203;"
"""A person or an issue: a blank without width behind the sign keeps it text."""
_START = re.compile(r"^([-+](?=\s|$)|[=#>/]|\d+[.)](?=\s|$))")


def markdown_page(document: Document) -> str:
    """The whole report. If it is too long for an issue tracker, the last sections lose their folded parts."""
    whole = _page(document, len(document.sections))
    for kept in range(len(document.sections) - 1, -1, -1):
        if len(whole) <= MOST:
            break
        whole = _page(document, kept)
    return whole


def _page(document: Document, folds: int) -> str:
    """`folds`: so many sections keep their folded parts."""
    lines = [_answer(title, answer, len(document.answers) > 1) for title, answer in document.answers]
    lines.append(" · ".join(_words(words) for words in (document.kicker, *document.labels)))
    for n, section in enumerate(document.sections):
        blocks = [block for block in section.blocks if n < folds or not isinstance(block, Folded)]
        lines += [f"## {_words(section.title)}", *(_block(block) for block in blocks)]
        if len(blocks) < len(section.blocks):
            lines.append("*Left out: an issue tracker takes no longer text. The HTML page has the whole report.*")
    return "\n\n".join([*filter(None, lines), f"<sub>{_words(document.foot)}</sub>"]) + "\n"


def _words(words: str) -> str:
    """Escaped text: no mention and no link comes of it."""
    shown = _SPECIAL.sub(lambda found: "&amp;" if found[0] == "&" else f"\\{found[0]}", compact(words))
    return _START.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", _MENTION.sub(BROKEN, shown))


def _answer(title: str, found: Answer, several: bool) -> str:
    rows = [f"# {_words(found.headline)}"]
    rows += [f"{_words(title)}"] if several else []
    rows += [f"**{_words(found.cost)}**"] if found.cost else []
    rows += ["\n".join(f"- {_segments(row)}" for row in found.fixes)] if found.fixes else []
    return "\n\n".join(rows)


def _block(block: Block | Folded) -> str:
    match block:
        case Folded():
            inside = "\n\n".join(_block(one) for one in block.blocks)
            title = _MENTION.sub(BROKEN, escape(clean(block.title), quote=False))  # in this line, Markdown has no escapes
            return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>"
        case Words():
            return parts_markdown(block.parts)
        case Verbatim():
            return _fenced(printed(block.parts).strip("\n"))
        case Timeline():
            return _timeline(block)
        case Steps():
            return _steps(block)
        case Waterfall():
            rows = [[row.label, row.words, row.cost] for row in block.rows]
            return f"**{_words(block.title)}**, {_words(block.note)}\n\n{_table(['part', 'time', 'cost'], 'lrr', rows)}"
        case Tiles() | Ranges():
            return ""  # their figures stand in the table or the text below them


def _fenced(text: str) -> str:
    """`text` in a code block with a fence longer than any in the text."""
    ticks = max([2, *(len(run) for run in re.findall("`+", text))]) + 1
    return f"{'`' * ticks}text\n{text}\n{'`' * ticks}"


# --- charts -------------------------------------------------------------------------------------------------


def _timeline(chart: Timeline) -> str:
    """The traces in letters, with the numbers of the changes below."""
    title = f"**{_words(chart.title)}**"
    if chart.missing:
        return f"{title}: {_words(chart.missing)}"
    last = max(trace.times[-1] for trace in chart.traces) or 1.0
    top = max(value for trace in chart.traces for value in trace.values)
    columns = max(10, min(COLUMNS, *(int(last / step) for step in map(usual_step, chart.traces) if step)))
    found = []
    for trace in chart.traces if len({trace.style for trace in chart.traces}) > 1 else [None]:
        points = [(t, value) for one in chart.traces if trace in (None, one) for t, value in zip(one.times, one.values, strict=True)]
        found += [*([trace.label] if trace is not None else []), *_letters(points, columns, last, top)]
    axis = [" "] * columns
    for number, mark in enumerate(chart.marks, 1):
        axis[min(columns - 1, int(mark.t / last * columns))] = str(number)[-1]
    found += ["".join(axis).rstrip()] if chart.marks else []
    found.append(f"{units.clock(0):<{max(6, columns - 5)}}{units.clock(last)}")
    marks = [f"{number}. {units.clock(mark.t)}: {_words(mark.words)}" for number, mark in enumerate(chart.marks, 1)]
    head = f"{title}, {_words(chart.unit)}; the highest column is {_words(units.rate(top, 0))}"
    return "\n\n".join(filter(None, [head, _fenced("\n".join(found)), "\n".join(marks)]))


def _letters(points: Sequence[tuple[float, float]], columns: int, last: float, top: float) -> list[str]:
    """Means of the points in columns of equal time."""
    sums, counts = [0.0] * columns, [0] * columns
    for t, value in points:
        column = max(0, min(columns - 1, int(t / last * columns)))
        sums[column] += value
        counts[column] += 1
    return [row.rstrip() for row in spark([total / n if n else None for total, n in zip(sums, counts, strict=True)], ROWS, top)]


def _steps(chart: Steps) -> str:
    title = f"**{_words(chart.title)}**"
    if chart.missing:
        return f"{title}: {_words(chart.missing)}"
    heads = ["part", *(bar.label or "share and time" for bar in chart.bars)]
    rows = [[NAMES.get(name, name), *(" · ".join(filter(None, part_words(bar, name))) for bar in chart.bars)] for name in step_parts(chart)]
    return f"{title}\n\n{_table(heads, 'l' + 'r' * len(chart.bars), rows)}"


def _table(heads: Sequence[str], aligns: str, rows: Sequence[Sequence[str]]) -> str:
    """A table of plain words. A column without a word is left out."""
    kept = [
        n for n, head in enumerate(heads) if (head.strip() and any(row[n].strip() for row in rows)) or any(row[n].strip() for row in rows)
    ]
    lines = [[_words(heads[n]) for n in kept], [":---" if aligns[n] == "l" else "---:" for n in kept]]
    lines += [[_words(row[n]) for n in kept] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- text parts ---------------------------------------------------------------------------------------------


def parts_markdown(report: Report) -> str:
    """Text parts: sentences, lists of labelled facts, code and tables."""
    found = []
    for group in groups(report):
        if isinstance(group, Table):
            found.append(_part_table(group))
            continue
        kind, lines = group
        if kind == "code":
            found.append(_fenced("\n".join(map(code, lines))))
        elif kind == "facts":
            found.append("\n".join(map(_fact, lines)))
        elif kind == "heading":
            found += map(_heading, lines)
        elif kind == "line":
            found += [_segments(whole(one)) for one in lines]
    return "\n\n".join(found)


def _fact(line: Line) -> str:
    label = f"{_words(line.label)}: " if line.label.strip() else ""
    return f"- {label}{_segments(whole(line))}"


def _heading(line: Line) -> str:
    right = f" ({_segments(line.right)})" if line.right else ""
    return f"### {_segments([(words, '') for words, _ in line.segments])}{right}"


def _segments(segments: Sequence[Segment]) -> str:
    """The segments, the important ones bold."""
    return joined(segments, lambda words, style: f"**{_words(words)}**" if style in BOLD else _words(words))


def _part_table(table: Table) -> str:
    aligns = "".join("r" if column.align == ">" else "l" for column in table.columns)
    heads = [column.head if table.heads else "" for column in table.columns]
    return _table(heads, aligns, [[words for words, _ in row] for row in table.rows])
