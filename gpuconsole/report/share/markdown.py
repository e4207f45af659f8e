"""A shared report as Markdown, for an issue tracker (GitHub, GitLab). Texts from outside are
escaped, so that they stay text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from gpuconsole.model import units
from gpuconsole.model.text import clean
from gpuconsole.report.cells import Segment, spark
from gpuconsole.report.parts import Line, Report, Table, printed
from gpuconsole.report.run.breakdown import NAMES
from gpuconsole.report.share.document import (
    LAYER_HEADS,
    Block,
    Document,
    Folded,
    Layers,
    Ranges,
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

MAX_CHARACTERS = 65_000
"""Characters. GitHub takes 65 536 in an issue or a comment, GitLab takes more."""
COLUMNS = 72
ROWS = 4
"""The largest width and the height of the chart in letters."""
BOLD = ("title", "good", "alert", "heading")
_SPECIAL = re.compile(
    r"[\\`*\[\]<|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=[A-Za-z#])|:(?=//)|(?<=www)\."
)
_MENTION = re.compile(r"[@#](?=\w)")
BROKEN = r"\g<0>&#8203;"
"""A person or an issue: a blank without width behind the sign keeps it text."""
_START = re.compile(r"^([-+](?=\s|$)|[=#>/]|\d+[.)](?=\s|$))")


def markdown_page(document: Document) -> str:
    """The whole report. If it is too long for an issue tracker, the last sections lose their folded
    parts."""
    whole = _page(document, len(document.sections))
    for kept in range(len(document.sections) - 1, -1, -1):
        if len(whole) <= MAX_CHARACTERS:
            break
        whole = _page(document, kept)
    return whole


def _page(document: Document, folds: int) -> str:
    """`folds`: so many sections keep their folded parts."""
    lines = [
        _answer(title, answer, len(document.answers) > 1) for title, answer in document.answers
    ]
    lines.append(" · ".join(_escaped(label) for label in (document.kicker, *document.labels)))
    for n, section in enumerate(document.sections):
        blocks = [block for block in section.blocks if n < folds or not isinstance(block, Folded)]
        lines += [f"## {_escaped(section.title)}", *(_block(block) for block in blocks)]
        if len(blocks) < len(section.blocks):
            lines.append(
                "*Left out: an issue tracker takes no longer text. The HTML page has the whole"
                " report.*"
            )
    return "\n\n".join([*filter(None, lines), f"<sub>{_escaped(document.foot)}</sub>"]) + "\n"


def _escaped(text: str) -> str:
    """Escaped text: no mention and no link comes of it."""
    shown = _SPECIAL.sub(lambda sign: "&amp;" if sign[0] == "&" else f"\\{sign[0]}", compact(text))
    return _START.sub(lambda start: f"{start[0][:-1]}\\{start[0][-1]}", _MENTION.sub(BROKEN, shown))


def _answer(title: str, answer: StoryAnswer, several: bool) -> str:
    rows = [f"# {_escaped(answer.headline)}"]
    rows += [f"{_escaped(title)}"] if several else []
    rows += [f"**{_escaped(answer.cost)}**"] if answer.cost else []
    rows += ["\n".join(f"- {_segments(row)}" for row in answer.fixes)] if answer.fixes else []
    return "\n\n".join(rows)


def _block(block: Block | Folded) -> str:
    match block:
        case Folded():
            inside = "\n\n".join(map(_block, block.blocks))
            # in this line, Markdown has no escapes
            title = _MENTION.sub(BROKEN, escape(clean(block.title), quote=False))
            return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>"
        case TextBlock():
            return parts_markdown(block.parts)
        case Verbatim():
            return _fenced(printed(block.parts).strip("\n"))
        case Timeline():
            return _timeline(block)
        case Layers():
            rows = [block.row(trace) for trace in (*reversed(block.layers), *block.extra)]
            return f"**{_escaped(block.title)}**\n\n{_table(LAYER_HEADS, 'lrrr', rows)}"
        case StepBars():
            return _steps(block)
        case Waterfall():
            rows = [[row.label, row.duration, row.cost] for row in block.rows]
            return (
                f"**{_escaped(block.title)}**,"
                f" {_escaped(block.note)}\n\n{_table(['part', 'time', 'cost'], 'lrr', rows)}"
            )
        case Tiles() | Ranges():
            return ""  # their figures stand in the table or the text below them


def _fenced(text: str) -> str:
    """`text` in a code block with a fence longer than any in the text."""
    ticks = max([2, *(len(run) for run in re.findall("`+", text))]) + 1
    return f"{'`' * ticks}text\n{text}\n{'`' * ticks}"


# --- charts ---------------------------------------------------------------------------------------


def _timeline(chart: Timeline) -> str:
    """The traces in letters, with the numbers of the changes below."""
    title = f"**{_escaped(chart.title)}**"
    if chart.missing:
        return f"{title}: {_escaped(chart.missing)}"
    last = max(trace.times[-1] for trace in chart.traces) or 1.0
    top = max(value for trace in chart.traces for value in trace.values)
    columns = max(
        10,
        min(
            [COLUMNS, *(int(last / step) for trace in chart.traces if (step := trace.usual_step_s))]
        ),
    )
    rows = []
    for trace in chart.traces if len({trace.style for trace in chart.traces}) > 1 else [None]:
        points = [
            (t, value)
            for other in chart.traces
            if trace in (None, other)
            for t, value in zip(other.times, other.values, strict=True)
        ]
        rows += [
            *([trace.label] if trace is not None else []),
            *_letters(points, columns, last, top),
        ]
    axis = [" "] * columns
    for number, mark in enumerate(chart.marks, 1):
        axis[max(0, min(columns - 1, int(mark.t / last * columns)))] = str(number)[-1]
    rows += ["".join(axis).rstrip()] if chart.marks else []
    rows.append(f"{units.clock(0):<{max(6, columns - 5)}}{units.clock(last)}")
    marks = [
        f"{number}. {units.clock(mark.t)}: {_escaped(mark.change)}"
        for number, mark in enumerate(chart.marks, 1)
    ]
    head = f"{title}, {_escaped(chart.unit)}; the highest column is {_escaped(units.rate(top, 0))}"
    return "\n\n".join(filter(None, [head, _fenced("\n".join(rows)), "\n".join(marks)]))


def _letters(
    points: Sequence[tuple[float, float]], columns: int, last: float, top: float
) -> list[str]:
    """Means of the points in columns of equal time."""
    sums, counts = [0.0] * columns, [0] * columns
    for t, value in points:
        column = max(0, min(columns - 1, int(t / last * columns)))
        sums[column] += value
        counts[column] += 1
    return [
        row.rstrip()
        for row in spark(
            [total / n if n else None for total, n in zip(sums, counts, strict=True)], ROWS, top
        )
    ]


def _steps(chart: StepBars) -> str:
    title = f"**{_escaped(chart.title)}**"
    if chart.missing:
        return f"{title}: {_escaped(chart.missing)}"
    heads = ["part", *(bar.label or "share and time" for bar in chart.bars)]
    rows = [
        [
            NAMES.get(name, name),
            *(" · ".join(filter(None, bar.figures(name))) for bar in chart.bars),
        ]
        for name in chart.names
    ]
    return f"{title}\n\n{_table(heads, 'l' + 'r' * len(chart.bars), rows)}"


def _table(heads: Sequence[str], aligns: str, rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts. A column without a text in its cells is left out."""
    kept = [n for n in range(len(heads)) if any(row[n].strip() for row in rows)]
    lines = [
        [_escaped(heads[n]) for n in kept],
        [":---" if aligns[n] == "l" else "---:" for n in kept],
    ]
    lines += [[_escaped(row[n]) for n in kept] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- text parts -----------------------------------------------------------------------------------


def parts_markdown(report: Report) -> str:
    """Text parts: sentences, lists of labelled facts, code and tables."""
    texts = []
    for group in groups(report):
        if isinstance(group, Table):
            texts.append(_part_table(group))
            continue
        kind, lines = group
        if kind == "code":
            texts.append(_fenced("\n".join(map(code, lines))))
        elif kind == "facts":
            texts.append("\n".join(map(_fact, lines)))
        elif kind == "heading":
            texts += map(_heading, lines)
        elif kind == "line":
            texts += [_segments(whole(line)) for line in lines]
    return "\n\n".join(texts)


def _fact(line: Line) -> str:
    label = f"{_escaped(line.label)}: " if line.label.strip() else ""
    return f"- {label}{_segments(whole(line))}"


def _heading(line: Line) -> str:
    right = f" ({_segments(line.right)})" if line.right else ""
    return f"### {_segments([(text, '') for text, _ in line.segments])}{right}"


def _segments(segments: Sequence[Segment]) -> str:
    """The segments, the important ones bold."""
    return joined(
        segments, lambda text, style: f"**{_escaped(text)}**" if style in BOLD else _escaped(text)
    )


def _part_table(table: Table) -> str:
    aligns = "".join("r" if column.align == ">" else "l" for column in table.columns)
    heads = [column.head if table.heads else "" for column in table.columns]
    return _table(heads, aligns, [[text for text, _ in row] for row in table.rows])
