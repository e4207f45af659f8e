"""The shape of a shared report: sections of text parts and charts. It has no layout; `html.py` and `markdown.py` write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuconsole.model.run import Run
from gpuconsole.report.parts import Report
from gpuconsole.report.share.story import Answer


class Trace(NamedTuple):
    """Values over time. `times` in seconds. `style`: `trace`, or `dim` for the trace that another one is compared with."""

    label: str
    times: Sequence[float]
    values: Sequence[float]
    style: str = "trace"


class Mark(NamedTuple):
    """A change at second `t`; `words` say what changed."""

    t: float
    words: str


class Band(NamedTuple):
    """A trial from second `start` to second `end`."""

    start: float
    end: float
    words: str


class Timeline(NamedTuple):
    """Throughput over time. `unit`: of the values. `missing`: the reason where there is no trace."""

    traces: Sequence[Trace]
    unit: str
    marks: Sequence[Mark] = ()
    bands: Sequence[Band] = ()
    missing: str = ""
    title: str = "throughput over time"


class Bar(NamedTuple):
    """A step (or a request) of a run as parts that add up. `total_s`: its mean time in seconds; None: not known."""

    label: str
    parts: Sequence[tuple[str, float]]
    total_s: float | None


class Steps(NamedTuple):
    """Where a step goes, one bar for each run, all bars on one scale. `missing`: the reason where there is no bar."""

    bars: Sequence[Bar]
    title: str
    missing: str = ""


class Range(NamedTuple):
    """An interval with its estimate, and the prediction beside it. `words`: the figures as text."""

    label: str
    words: str
    measured: tuple[float, float, float] | None
    predicted: tuple[float, float] | None = None
    style: str = ""


class Ranges(NamedTuple):
    """Intervals on one scale. `reference`: a value with a line of its own, for example 1x; None: the scale begins at 0."""

    rows: Sequence[Range]
    title: str
    unit: str
    reference: float | None = None


class Loss(NamedTuple):
    """A part of the time of a step, from second `start_s` on. `words`: its time; `cost`: what it costs of the rate. `style`: `work` for the
    time at the attainable rate, `total` for the whole time, empty for a loss."""

    label: str
    start_s: float
    time_s: float
    words: str
    cost: str = ""
    style: str = ""


class Waterfall(NamedTuple):
    """From the attainable rate down to the reached rate: each part begins where the part before it ends."""

    rows: Sequence[Loss]
    title: str
    note: str


class Tile(NamedTuple):
    """One large figure. `before`: the figure that it is compared with."""

    label: str
    value: str
    before: str = ""
    note: str = ""
    style: str = ""


class Tiles(NamedTuple):
    tiles: Sequence[Tile]


class Words(NamedTuple):
    """Text parts of a report."""

    parts: Report


class Verbatim(NamedTuple):
    """Every figure of a run: parts in HTML, the text of the terminal in Markdown."""

    run: Run
    parts: Report


Block = Timeline | Steps | Ranges | Waterfall | Tiles | Words | Verbatim


class Folded(NamedTuple):
    """Blocks behind a title that the reader opens."""

    title: str
    blocks: Sequence[Block]


class Section(NamedTuple):
    title: str
    blocks: Sequence[Block | Folded]


class Document(NamedTuple):
    """`kicker`: what the report is about. `labels`: what the reader must know about all figures, such as the kind of the device."""

    title: str
    kicker: str
    labels: Sequence[str]
    answers: Sequence[tuple[str, Answer]]
    sections: Sequence[Section]
    foot: str
