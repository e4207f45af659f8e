"""The progress of each search over time."""

from __future__ import annotations

import math
from typing import Any

from gpuconsole.report.charts import empty_figure

WIDTH, HEIGHT = 100, 16
MARKS = {"tune": "●", "grid": "·", "random": "r", "tpe": "t"}


def curve(name: str, found: dict[str, Any]) -> str:
    """The best value so far (y axis, as a share of the grid's best) by seconds (x axis, each mark
    twice the last)."""
    figure = empty_figure(WIDTH, HEIGHT)
    latest = max(t for points in found["curves"].values() for t, _ in points)
    highest = max(1.0, *(share for points in found["curves"].values() for _, share in points))
    for search, mark in MARKS.items():
        times, shares = _steps(found["curves"][search], latest)
        figure.draw(figure.signal([math.log2(t) for t in times], shares, marker=mark))
    ticks = list(range(math.ceil(math.log2(latest)) + 1))
    figure.ruler("x").lim(0, math.log2(latest))
    figure.ruler("x").ticks(ticks, [f"{2**tick} s" for tick in ticks])
    figure.ruler("y").lim(0, highest * 1.05)
    drawn: str = figure.build().string(colorless=True)
    marks = ", ".join(f"{mark} {search}" for search, mark in MARKS.items())
    return f"{name}: share of the grid's best by time ({marks})\n{drawn.rstrip()}"


def _steps(points: list[tuple[float, float]], until: float) -> tuple[list[float], list[float]]:
    """What is held between two points too: a mark for each column."""
    times = [2 ** (math.log2(until) * n / WIDTH) for n in range(WIDTH + 1)]
    held = [(t, [share for at, share in points if at <= t]) for t in times]
    known = [(t, shares[-1]) for t, shares in held if shares]
    return [t for t, _ in known], [share for _, share in known]
