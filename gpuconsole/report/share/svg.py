"""The charts of a shared report as SVG. Each chart is drawn twice, for a desktop and for a phone;
colours come from the style sheet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from gpuconsole.model import units
from gpuconsole.model.text import clean, cut
from gpuconsole.report.charts import round_ticks
from gpuconsole.report.run.breakdown import LOOKS, NAMES
from gpuconsole.report.share.document import Layers, Ranges, StepBars, Timeline, Waterfall

WIDE = 1000
NARROW = 358
"""Widths in pixels: the text column of the page, and that of a phone."""
LETTER = 6.6
"""Width of a letter of the charts, in pixels."""
DENSITIES = {"█": "dense1", "▓": "dense2", "▒": "dense3", "░": "dense4", "▄": "dense3"}
"""The class of the style sheet that shows a part as dense as its letter in the terminal."""
CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)


def both(draw: Callable[[int], str]) -> str:
    """The chart at both widths; the style sheet shows one of them."""
    return "".join(
        f'<div class="{name}">{draw(width)}</div>'
        for name, width in (("wide", WIDE), ("narrow", NARROW))
    )


def _svg(width: int, height: float, label: str, inside: list[str]) -> str:
    head = (
        f'<svg viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}" role="img"'
        f' aria-label="{_escaped(label)}">'
    )
    return head + "".join(inside) + "</svg>"


def _escaped(text: str) -> str:
    return escape(clean(text))


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}{where}>{_escaped(text)}</text>'


def _tick(x: float, y: float, text: str, width: int) -> str:
    """The figure of an axis, centred at `x`, and inside of the chart."""
    half = len(text) * LETTER / 2
    anchor = "start" if x < half else "end" if x + half > width else "middle"
    return _text(x, y, text, "tick", anchor)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    """`title`: what the browser shows under the mouse."""
    shown = f"<title>{_escaped(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"'
        f' class="{kind}">{shown}</rect>'
    )


def _room(labels: Sequence[str]) -> float:
    """The pixels that the longest label needs."""
    return LETTER * max(map(len, labels), default=0) + 10


# --- throughput over time -------------------------------------------------------------------------


def timeline_svg(chart: Timeline, width: int) -> str:
    """Traces over a time axis. Bands are trials; dashed lines with a number are changes, which the
    page explains below the chart."""
    height, top, bottom = (250, 22, 40) if width > 600 else (210, 22, 40)
    most = min(1e300, max(value for trace in chart.traces for value in trace.values) * 1.12) or 1.0
    last = (
        max([trace.times[-1] for trace in chart.traces] + [band.end for band in chart.bands]) or 1.0
    )
    levels = round_ticks(0.0, most, 5)
    left = _room([units.rate(level, 0) for level in levels])
    right = 12.0

    def x(t: float) -> float:
        return left + (width - left - right) * max(0.0, min(1.0, t / last))

    def y(value: float) -> float:
        return height - bottom - (height - top - bottom) * value / most

    inside = [
        _rect(
            x(band.start),
            top,
            x(band.end) - x(band.start),
            height - top - bottom,
            "band",
            title=f"trial: {band.change}",
        )
        for band in chart.bands
    ]
    for level in levels:
        inside += [
            _line(left, y(level), width - right, y(level), "grid"),
            _text(left - 6, y(level) + 4, units.rate(level, 0), "tick", "end"),
        ]
    for t in round_ticks(0.0, last, width // 120, CLOCK_STEPS):
        inside.append(_tick(x(t), height - bottom + 18, units.clock(t), width))
    inside += [
        _text(left - 6, 12, chart.unit, "tick", "start" if left < _room([chart.unit]) else "end")
    ]
    inside.append(
        _text(width - right, height - 6, "time since the first step, min:s", "tick", "end")
    )
    for band in chart.bands:
        if x(band.end) - x(band.start) > 5 * LETTER + 8:
            inside.append(
                _text(
                    (x(band.start) + x(band.end)) / 2,
                    height - bottom - 8,
                    "trial",
                    "tick",
                    "middle",
                )
            )
    for trace in chart.traces:
        for piece in trace.pieces():
            points = " ".join(f"{x(t):.1f},{y(value):.1f}" for t, value in piece)
            inside.append(
                f'<polyline points="{points}" class="{trace.style}"/>' if len(piece) > 1 else ""
            )
            inside += [
                f'<circle cx="{x(t):.1f}" cy="{y(value):.1f}" r="2.2" class="{trace.style}-dot"/>'
                for t, value in piece
            ]
    for number, mark in enumerate(chart.marks, 1):
        at = x(mark.t)
        inside.append(_line(at, top - 4, at, height - bottom, "mark"))
        inside.append(
            f'<circle cx="{at:.1f}" cy="{top - 8:.1f}" r="9"'
            f' class="badge"><title>{_escaped(mark.change)}</title></circle>'
        )
        inside.append(_text(at, top - 4, str(number), "badge-text", "middle"))
    return _svg(width, height, f"{chart.title}, {chart.unit}", inside)


# --- layers over time -----------------------------------------------------------------------------


def layers_svg(chart: Layers, width: int) -> str:
    """Areas above one another over a time axis. The line at the top is the total that is
    possible."""
    height, top, bottom = (230, 14, 40) if width > 600 else (200, 14, 40)
    times = chart.layers[0].times
    sums = [[0.0] * len(times)]
    for layer in chart.layers:
        sums.append([below + value for below, value in zip(sums[-1], layer.values, strict=True)])
    most, last = max(chart.total, *sums[-1]) * 1.05 or 1.0, times[-1] or 1.0
    unit = 1024.0**3 if most > 1024.0**3 else 1024.0**2
    levels = [level * unit for level in round_ticks(0.0, most / unit, 5)]
    names = [units.digits(level / unit) for level in levels]
    left, right = _room([*names, "GiB"]), 12.0

    def x(t: float) -> float:
        return left + (width - left - right) * t / last

    def y(value: float) -> float:
        return height - bottom - (height - top - bottom) * value / most

    inside = []
    for layer, lower, upper in zip(chart.layers, sums, sums[1:], strict=False):
        edges = [*zip(times, upper, strict=True), *reversed(list(zip(times, lower, strict=True)))]
        points = " ".join(f"{x(t):.1f},{y(value):.1f}" for t, value in edges)
        inside.append(
            f'<polygon points="{points}" class="{layer.style}"><title>{_escaped(layer.label)}</'
            "title></polygon>"
        )
    for level, name in zip(levels, names, strict=True):
        inside += [
            _line(left, y(level), width - right, y(level), "grid"),
            _text(left - 6, y(level) + 4, name, "tick", "end"),
        ]
    if chart.total:
        inside.append(_line(left, y(chart.total), width - right, y(chart.total), "reference"))
    for t in round_ticks(0.0, last, width // 120, CLOCK_STEPS):
        inside.append(_tick(x(t), height - bottom + 18, units.clock(t), width))
    inside.append(_text(left - 6, 10, "GiB" if unit > 1024.0**2 else "MiB", "tick", "end"))
    inside.append(
        _text(width - right, height - 6, "time since the first reading, min:s", "tick", "end")
    )
    return _svg(width, height, chart.title, inside)


# --- where a step goes ----------------------------------------------------------------------------


def steps_svg(chart: StepBars, width: int) -> str:
    """One bar for each run, on one scale: milliseconds, or shares where the time of a step is not
    known."""
    timed = all(bar.total_s for bar in chart.bars)
    totals = [bar.total_s or 1.0 if timed else 1.0 for bar in chart.bars]
    most = max(totals)
    left = _room([bar.label for bar in chart.bars]) if any(bar.label for bar in chart.bars) else 0.0
    right, high, gap = 12.0, 34.0, 14.0
    inside: list[str] = []

    def x(value: float) -> float:
        return left + (width - left - right) * value / most

    bottom = len(chart.bars) * (high + gap)
    for tick in round_ticks(0.0, most, max(2, width // 130)):
        figure = units.duration(tick).strip() if timed else units.percent(tick).strip()
        inside += [
            _line(x(tick), 0, x(tick), bottom, "grid"),
            _tick(x(tick), bottom + 16, figure if tick else "0", width),
        ]
    for n, (bar, total) in enumerate(zip(chart.bars, totals, strict=True)):
        y, start = n * (high + gap) + 4, 0.0
        inside += [
            _text(0, y + high / 2 + 4, bar.label),
            _rect(x(0), y, x(total) - x(0), high, "page"),
        ]
        whole = sum(ratio for _, ratio in bar.parts)
        for name, ratio in bar.parts:
            size = total * ratio / whole
            glyph, style = LOOKS[name]
            label = NAMES.get(name, name)
            title = f"{label} {units.percent(ratio).strip()}" + (
                f", {units.duration(ratio * total).strip()}" if timed else ""
            )
            at, room = x(start), x(start + size) - x(start) - 1.5
            inside.append(_rect(at, y, room, high, f"{style} {DENSITIES[glyph]}", title))
            inside += _named(
                at, y + high / 2 + 4, room, label, ratio, f"on-{style}" if glyph in "█▓" else ""
            )
            start += size
    return _svg(width, bottom + 22, chart.title, inside)


def _named(x: float, y: float, room: float, name: str, ratio: float, kind: str) -> list[str]:
    """The name and the share of a part, in the longest wording that fits into `room` pixels."""
    share = units.percent(ratio).strip()
    label = next(
        (text for text in (f"{name} {share}", name, share) if len(text) * LETTER + 8 < room), ""
    )
    return [_text(x + room / 2, y, label, kind, "middle")] if label else []


# --- intervals ------------------------------------------------------------------------------------


def ranges_svg(chart: Ranges, width: int) -> str:
    """A row for each interval: the prediction as a thin bar, the measurement as a line with its
    estimate."""
    wide = width > 600
    values = [
        value for row in chart.rows for value in (*(row.measured or ()), *(row.predicted or ()))
    ]
    reference = [chart.reference] if chart.reference is not None else []
    low = min([*values, *reference]) if reference else 0.0
    high = max([*values, *reference], default=1.0)
    pad = 0.06 * (high - low or 1.0)
    low, high = (max(0.0, low - pad) if reference else 0.0), high + pad
    label = min(300.0, _room([clean(row.label) for row in chart.rows])) if wide else 0.0
    figures = _room([row.figures for row in chart.rows]) if wide else 0.0
    left, right = label + 8, width - figures - 12
    each = 40.0 if wide else 64.0
    bottom = len(chart.rows) * each

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low or 1.0)

    inside: list[str] = []
    # free of text
    rows = [
        (n * each + (0.0 if wide else 37.0), (n + 1) * each - (0.0 if wide else 4.0))
        for n in range(len(chart.rows))
    ]
    for tick in round_ticks(low, high, max(2, int(right - left) // 90)):
        name = f"{tick:g}x" if chart.unit == "x" else units.rate(tick, 0)
        inside += [_line(x(tick), y1, x(tick), y2, "grid") for y1, y2 in rows]
        inside.append(_tick(x(tick), bottom + 12, name, width))
    if chart.reference is not None:
        inside += [
            _line(x(chart.reference), y1, x(chart.reference), y2, "reference") for y1, y2 in rows
        ]
    for n, row in enumerate(chart.rows):
        y = n * each + (each / 2 if wide else 46.0)
        letters = int((label if wide else width) / LETTER)
        inside.append(f'<g class="{row.style or "plain"}">')
        if wide:
            inside += [
                _text(0, y + 4, cut(row.label, letters)),
                _text(width, y + 4, row.figures, "figure", "end"),
            ]
        else:
            inside += [
                _text(0, y - 30, cut(row.label, letters)),
                _text(0, y - 14, row.figures, "figure"),
            ]
        if row.predicted is not None:
            start, end = x(row.predicted[0]), x(row.predicted[1])
            inside.append(_rect(start, y + 5, end - start, 5, "predicted", title="predicted"))
        if row.measured is not None:
            begin, middle, end = (x(value) for value in row.measured)
            inside += [
                _line(begin, y, end, y, "interval"),
                _line(begin, y - 4, begin, y + 4, "interval"),
                _line(end, y - 4, end, y + 4, "interval"),
            ]
            inside.append(f'<circle cx="{middle:.1f}" cy="{y:.1f}" r="4.5" class="estimate"/>')
        inside.append("</g>")
    return _svg(width, bottom + 22, chart.title, inside)


# --- attainable rate ------------------------------------------------------------------------------


def waterfall_svg(chart: Waterfall, width: int) -> str:
    """A row for each part; a part that is negative goes back to the left."""
    wide = width > 600
    most = max(max(row.start_s, row.start_s + row.time_s) for row in chart.rows) or 1.0
    figures = [" · ".join(filter(None, (row.duration, row.cost))) for row in chart.rows]
    label = _room([clean(row.label) for row in chart.rows]) if wide else 0.0
    right = width - (_room(figures) if wide else 0.0)
    each = 26.0 if wide else 42.0

    def x(seconds: float) -> float:
        return label + (right - label) * max(0.0, seconds) / most

    inside: list[str] = []
    for n, (row, figure) in enumerate(zip(chart.rows, figures, strict=True)):
        y = n * each + (0.0 if wide else 18.0)
        begin, end = sorted((x(row.start_s), x(row.start_s + row.time_s)))
        kind = row.style or ("wait" if row.time_s >= 0 else "predicted")
        inside.append(
            _rect(begin, y + 3, max(1.5, end - begin), 16, kind, f"{row.label}: {figure}")
        )
        if not wide and LETTER * (len(row.label) + len(figure)) > width:  # no room for the cost
            figure = row.duration
        inside.append(_text(0, y + 15 if wide else y - 3, row.label))
        inside.append(
            _text(width, y + 15 if wide else y - 3, figure, "figure" if row.style else "", "end")
        )
        if n + 1 < len(chart.rows):
            at = x(row.start_s + row.time_s)
            inside.append(_line(at, y + 19, at, y + each + 3, "grid"))
    return _svg(width, len(chart.rows) * each + 4, chart.title, inside)
