"""Charts of the history screen. plotext draws them without colour; the styles use the colours of
the terminal."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from gpuconsole.model import units
from gpuconsole.model.text import cell_width
from gpuconsole.report.cells import Row, line

BINS = 40
_DOTS = "▀▄█▌▐▖▗▘▝▚▞▙▛▜▟"


def throughput(
    times: list[float],
    values: list[float],
    marks: Sequence[tuple[float, str]],
    unit: str,
    width: int,
    height: int,
) -> list[Row]:
    """Throughput over time, with a vertical line at each change of knobs, which the title names. A
    pause stays open, as on the main screen."""
    figure = empty_figure(width, height)
    top = max(values) * 1.1 or 1.0
    for part in _without_pauses(times):
        figure.draw(figure.signal(times[part], values[part]).lines())
    for t, _ in marks:
        figure.line(t, "v", style="dotted")
    figure.ruler("x").lim(times[0], times[-1])
    figure.ruler("y").lim(0, top)
    _ticks(
        figure, "y", round_ticks(0, top, max(3, height // 4)), lambda value: units.rate(value, 0)
    )
    _ticks(figure, "x", round_ticks(times[0], times[-1], 6, (1, 2, 5, 10, 15, 30, 60)), units.clock)
    title = f"throughput, {unit}"
    named = [
        f"{title}; dotted: {', '.join(f'{units.clock(t)} {text}' for t, text in marks[first:])}"
        for first in range(len(marks))
    ]
    return _rows(
        figure,
        next(
            (text for text in named if cell_width(text) <= width),
            f"{title}; dotted: settings changed" if marks else title,
        ),
        width,
    )


def _without_pauses(times: Sequence[float]) -> list[slice]:
    """The parts between which more time lies than a few usual distances of two points."""
    gaps = [later - t for t, later in itertools.pairwise(times)]
    pause_s = max(MIN_PAUSE_S, PAUSE * statistics.median(gaps)) if gaps else 0.0
    ends = [n + 1 for n, gap in enumerate(gaps) if gap > pause_s]
    return [slice(start, end) for start, end in zip([0, *ends], [*ends, len(times)], strict=True)]


MIN_PAUSE_S = 3.0
PAUSE = 4.0
"""A pause is longer than this, and than so many usual distances of two points."""


def step_times(
    seconds: Sequence[float],
    width: int,
    height: int,
    heading: str = "step times of {} recent steps",
) -> list[Row]:
    """A histogram of step times (or of what `heading` names) up to the 99.5th percentile: one long
    step does not flatten the others."""
    ordered = sorted(seconds)
    inside = ordered[: max(1, int(len(ordered) * 0.995))]
    low, high = inside[0], inside[-1]
    bins = max(1, min(BINS, len(set(inside))))
    span = (high - low) / bins or high or 1.0
    counts = [0] * bins
    for value in inside:
        counts[min(bins - 1, int((value - low) / span))] += 1
    figure = empty_figure(width, height)
    figure.draw(figure.bar([low + (n + 0.5) * span for n in range(bins)], counts, width=1.0))
    _ticks(figure, "x", round_ticks(low, high, 6), lambda value: units.duration(value).strip())
    _ticks(
        figure, "y", round_ticks(0, max(counts), max(2, height // 4)), lambda value: f"{value:g}"
    )
    points = ", ".join(
        f"p{q} {units.duration(_percentile(ordered, q / 100)).strip()}" for q in (50, 90, 95, 99)
    )
    left_out = len(ordered) - len(inside)
    title = f"{heading.format(len(ordered))}, counted: {points}" + (
        f"; {left_out} longer steps not drawn" if left_out else ""
    )
    return _rows(figure, title, width)


def round_ticks(low: float, high: float, count: int, steps: Sequence[float] = ()) -> list[float]:
    """About `count` round numbers between `low` and `high`. `steps` are tried first: for seconds,
    15 and 30 are round."""
    least = max(high - low, 1e-12) / max(1, count)
    step = next((factor for factor in steps if factor >= least), 0.0)
    if not step:
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _percentile(ordered: list[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def empty_figure(width: int, height: int) -> Any:
    """Plotext's global figure, cleared. The import is here because it is slow and charts are rarely
    opened."""
    import plotext

    plotext.terminal.limit(False, False)
    figure = plotext.figure
    figure.clear.all()
    figure.plot_size(max(20, width), max(5, height - 1))
    return figure


def _ticks(figure: Any, axis: str, positions: list[float], text: Callable[[float], str]) -> None:
    figure.ruler(axis).ticks(positions, [text(value) for value in positions])


def _rows(figure: Any, title: str, width: int) -> list[Row]:
    return [line(width, (title, "title")), *chart_rows(figure, width)]


def chart_rows(figure: Any, width: int, letters: str = "") -> list[Row]:
    """The chart as rows: data in the trace colour, the frame and its figures dim. `letters` are
    points."""
    data = re.compile(f"([{_DOTS}]+" + (f"|[{letters}])" if letters else ")"))
    rows = []
    for text in figure.build().string(colorless=True).rstrip("\n").split("\n"):
        edge = next((n for n, char in enumerate(text) if char in "│┤"), len(text))
        parts = data.split(text[edge:])
        inside = (
            (part, ("title" if part in letters else "high") if n % 2 else "dim")
            for n, part in enumerate(parts)
        )
        rows.append(line(width, (text[:edge], "dim"), *inside))
    return rows
