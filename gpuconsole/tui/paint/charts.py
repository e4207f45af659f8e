"""Charts to study, drawn on demand by plotext."""

from __future__ import annotations

from typing import Any

from gpuconsole.tui.paint import format

BINS = 40


def throughput(times: list[float], values: list[float], marks: list[float], unit: str, width: int, height: int) -> str:
    """Throughput over session time, with a line where knobs changed. Text with colour escapes."""
    figure = _figure(width, height)
    for t in marks:
        figure.line(t, "v", style="dotted")
    figure.draw(figure.signal(times, values).lines())
    figure.ruler("y").lim(0, max(values) * 1.1 or 1.0)
    _ticks(figure, "y", 0, max(values) * 1.1, lambda value: format.rate(value, 0))
    _ticks(figure, "x", min(times), max(times), format.clock)
    figure.title(f"throughput, {unit}, over session time; a dotted line: knobs changed")
    return _text(figure)


def step_times(seconds: list[float], width: int, height: int) -> str:
    """How long steps took: a histogram up to the 99.5th percentile, so that one straggler does not flatten the rest."""
    ordered = sorted(seconds)
    top = ordered[min(len(ordered) - 1, int(len(ordered) * 0.995))]
    inside = [value for value in ordered if value <= top]
    low, high = inside[0], inside[-1]
    bins = max(1, min(BINS, len(set(inside))))
    span = (high - low) / bins or high or 1.0
    counts = [0] * bins
    for value in inside:
        counts[min(bins - 1, int((value - low) / span))] += 1
    figure = _figure(width, height)
    figure.draw(figure.bar([low + (n + 0.5) * span for n in range(bins)], counts, width=1.0))
    _ticks(figure, "x", low, high, lambda value: format.duration(value).strip())
    _ticks(figure, "y", 0, max(counts), lambda value: f"{value:.0f}", min(5, max(counts) + 1))
    figure.title(f"step times, {len(ordered)} recent steps" + (f", {len(ordered) - len(inside)} longer ones left out" if len(inside) < len(ordered) else ""))
    return _text(figure)


def _figure(width: int, height: int) -> Any:
    import plotext

    plotext.terminal.limit(False, False)
    figure = plotext.figure
    figure.clear.all()
    figure.theme("simple")  # the terminal's own background
    figure.plot_size(width, height)
    return figure


def _ticks(figure: Any, axis: str, low: float, high: float, text: Any, count: int = 5) -> None:
    positions = [low + (high - low) * n / (count - 1) for n in range(count)]
    figure.ruler(axis).ticks(positions, [text(value) for value in positions])


def _text(figure: Any) -> str:
    return str(figure.build().string())
