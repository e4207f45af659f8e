"""The shape of a shared report: sections of text parts and charts, without a layout. `html.py` and
`markdown.py` write the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

from gpuconsole.model import units
from gpuconsole.model.run import IN_A_STEP, Run
from gpuconsole.model.serving import SERVING_PHASES
from gpuconsole.model.text import clean
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Line, Part, Report, Table

# --- the shape of a shared report -----------------------------------------------------------------


class Trace(NamedTuple):
    """Values over time. `times` in seconds. `style`: `trace`, or `dim` for the trace that another
    one is compared with."""

    label: str
    times: Sequence[float]
    values: Sequence[float]
    style: str = "trace"

    @property
    def usual_step_s(self) -> float:
        """The median distance of two points in seconds; 0 for a single point."""
        steps = sorted(later - earlier for earlier, later in pairwise(self.times))
        return steps[len(steps) // 2] if steps else 0.0

    def pieces(self) -> list[list[tuple[float, float]]]:
        """The points, divided where no value was measured for three times the usual distance of two
        points."""
        longest = 3 * self.usual_step_s
        pieces: list[list[tuple[float, float]]] = []
        for n, point in enumerate(zip(self.times, self.values, strict=True)):
            if not pieces or point[0] - self.times[n - 1] > longest:
                pieces.append([])
            pieces[-1].append(point)
        return pieces


class TraceMark(NamedTuple):
    """A change at second `t`."""

    t: float
    change: str


class Band(NamedTuple):
    """A trial of `change` from second `start` to second `end`."""

    start: float
    end: float
    change: str


class Timeline(NamedTuple):
    """Throughput over time. `unit`: of the values. `missing`: the reason where there is no
    trace."""

    traces: Sequence[Trace]
    unit: str
    marks: Sequence[TraceMark] = ()
    bands: Sequence[Band] = ()
    missing: str = ""
    title: str = "throughput over time"


class Layers(NamedTuple):
    """Bytes over time that add up, the first layer at the bottom. All layers have the same times.
    The style of a layer is its class in the style sheet. `total`: the largest sum that is possible,
    such as the memory of the card; 0: not known. `extra`: values of the same kind outside of the
    sum."""

    layers: Sequence[Trace]
    title: str
    total: float = 0.0
    extra: Sequence[Trace] = ()

    def row(self, trace: Trace) -> list[str]:
        """The label of a layer, its first and its last value, and its largest one."""
        return [
            trace.label,
            *(
                units.size_bytes(value).strip()
                for value in (trace.values[0], trace.values[-1], max(trace.values))
            ),
        ]


LAYER_HEADS = ["", "first", "last", "largest"]
"""The heads of `Layers.row`."""


class Bar(NamedTuple):
    """A step (or a request) of a run as parts that add up. `total_s`: its mean time in seconds;
    None: not known."""

    label: str
    parts: Sequence[tuple[str, float]]
    total_s: float | None

    def figures(self, name: str) -> tuple[str, str]:
        """`54 %` and `89.1 ms` of a part, as in the step breakdown of the terminal. The share is
        empty for a part below half a percent, the time where it is not known."""
        ratio = dict(self.parts).get(name)
        if ratio is None:
            return "", ""
        return units.percent(ratio).strip(), units.duration(
            ratio * self.total_s
        ).strip() if self.total_s else ""


class StepBars(NamedTuple):
    """Where a step goes, one bar for each run, all bars on one scale. `missing`: the reason where
    there is no bar."""

    bars: Sequence[Bar]
    title: str
    missing: str = ""

    @property
    def names(self) -> list[str]:
        """The names of all parts, in the order of a step or of a request."""
        names = {name for bar in self.bars for name, _ in bar.parts}
        return [name for name in (*IN_A_STEP, *SERVING_PHASES) if name in names]


class Range(NamedTuple):
    """An interval with its estimate, and the prediction beside it. `figures`: as text."""

    label: str
    figures: str
    measured: tuple[float, float, float] | None
    predicted: tuple[float, float] | None = None
    style: str = ""


class Ranges(NamedTuple):
    """Intervals on one scale. `reference`: a value with a line of its own, for example 1x; None:
    the scale begins at 0."""

    rows: Sequence[Range]
    title: str
    unit: str
    reference: float | None = None


class StepLoss(NamedTuple):
    """A part of the time of a step, from second `start_s` on. `duration`: its time as text; `cost`:
    what it costs of the rate. `style`: `work` for the time at the attainable rate, `total` for the
    whole time, empty for a loss."""

    label: str
    start_s: float
    time_s: float
    duration: str
    cost: str = ""
    style: str = ""


class Waterfall(NamedTuple):
    """From the attainable rate down to the reached rate: each part begins where the part before it
    ends."""

    rows: Sequence[StepLoss]
    title: str
    note: str


class FigureTile(NamedTuple):
    """One large figure. `before`: the figure that it is compared with."""

    label: str
    value: str
    before: str = ""
    note: str = ""
    style: str = ""


class Tiles(NamedTuple):
    tiles: Sequence[FigureTile]


class TextBlock(NamedTuple):
    """Text parts of a report."""

    parts: Report


class Verbatim(NamedTuple):
    """Every figure of a run: parts in HTML, the text of the terminal in Markdown."""

    run: Run
    parts: Report


Block = Timeline | Layers | StepBars | Ranges | Waterfall | Tiles | TextBlock | Verbatim


class Folded(NamedTuple):
    """Blocks behind a title that the reader opens."""

    title: str
    blocks: Sequence[Block]


class Section(NamedTuple):
    title: str
    blocks: Sequence[Block | Folded]


class StoryAnswer(NamedTuple):
    """`headline`: what was slow. `cost`: what it costs. `fixes`: what was tried against it.
    `style`: the style of the headline."""

    headline: str
    cost: str = ""
    fixes: Sequence[Sequence[Segment]] = ()
    style: str = "wait"


class Document(NamedTuple):
    """`kicker`: what the report is about. `labels`: what the reader must know about all figures,
    such as the kind of the device."""

    title: str
    kicker: str
    labels: Sequence[str]
    answers: Sequence[tuple[str, StoryAnswer]]
    sections: Sequence[Section]
    foot: str


# --- what HTML and Markdown have in common --------------------------------------------------------

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
    return "".join(clean(text) for text, _ in part.segments)


def compact(text: str) -> str:
    """`text` without control characters. A wide gap between two figures becomes a point, because a
    page collapses blanks."""
    return re.sub(r" {2,}", " · ", clean(text).strip())


def joined(segments: Sequence[Segment], show: Callable[[str, str], str]) -> str:
    """The segments as `show(text, style)` writes each. Blanks at the border of two segments stand
    outside of the styles."""
    texts: list[str] = []
    gap = ""
    for text, style in segments:
        shown = clean(text)
        bare = shown.strip()
        gap += shown[: len(shown) - len(shown.lstrip())] if bare else shown
        if not bare:
            continue
        if texts:
            texts.append(" · " if len(gap) > 1 else gap)
        texts.append(show(bare, style))
        gap = shown[len(shown.rstrip()) :]
    return "".join(texts)
