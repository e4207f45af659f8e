"""The analytical models beside their measurement, and the processes of a run, as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model.figure import Figure
from gpuconsole.model.run import Rank, Run
from gpuconsole.model.text import visible
from gpuconsole.report.quantities import seconds, si

NA = "n/a"
VALUE = 17
"""Columns for a figure: as many as `1.23 k tokens/s` needs, and two."""
BYTES = {"bytes": "B", "bytes/s": "B/s"}
RATIO_FROM = 10.0
"""An error of so many times the measurement is told as a ratio."""


def figure_lines(figures: Sequence[Figure]) -> list[str]:
    """A table: what each model says, what was measured, and how far they lie apart; what is missing has its reason."""
    if not figures:
        return []
    wide = max(len(visible(figure.title)) for figure in figures)
    rows = [f"{'models':<{wide + 2}}{'predicted':>{VALUE}}{'measured':>{VALUE}}{'error':>9}"]
    for figure in figures:
        predicted, measured = quantity(figure.predicted, figure.unit), quantity(figure.measured, figure.unit)
        why = f"  {visible(figure.note)}" if NA in (predicted, measured) and figure.note else ""
        rows.append(f"  {visible(figure.title):<{wide}}{predicted:>{VALUE}}{measured:>{VALUE}}{error(figure):>9}{why}".rstrip())
    return rows


def quantity(value: float | None, unit: str) -> str:
    """`8.3 MB`, `1.35 ms`, `31.2%`."""
    if value is None:
        return NA
    if unit == "s":
        return seconds(value)
    return f"{value:.1%}" if unit == "ratio" else si(value, BYTES.get(unit, unit))


def error(figure: Figure) -> str:
    """`+0.4%`: how far the prediction lies from the measurement; `120x` where it is many times as much."""
    ratio = figure.error_ratio
    if ratio is None:
        return ""
    return f"{ratio:+.1%}" if abs(ratio) < RATIO_FROM else f"{ratio + 1:.3g}x" if ratio < 999 else ">999x"


def rank_lines(run: Run) -> list[str]:
    """A table of the processes of a run that has several; the one that the others wait for is named."""
    if len(run.ranks) < 2:
        return []
    hosts = max(4, *(len(visible(rank.host)) for rank in run.ranks))
    head = f"{'rank':>5}  {'host':<{hosts}}{'steps':>7}{'step p50':>11}{'without comm':>14}{'pass alone':>12}{'comm':>8}{'memory':>11}"
    return [f"{len(run.ranks)} processes", head, *(_rank_line(rank, run, hosts) for rank in run.ranks)]


def _rank_line(rank: Rank, run: Run, hosts: int) -> str:
    step = rank.step_time_s
    alone = run.signals.get(f"comm.pass_alone_s.rank{rank.rank}")
    figures = (
        (seconds(step.p50) if step else NA, 11),
        (seconds(rank.busy_s) if rank.busy_s is not None else NA, 14),
        (seconds(alone.value) if alone else NA, 12),
        (f"{rank.phases_ratio.get('comm', 0.0):.1%}" if step else NA, 8),
        (si(rank.memory_peak_bytes, "B") if rank.memory_peak_bytes else NA, 11),
    )
    slowest = f"  slowest, {run.slowest[1]:.2f}x the others" if run.slowest and run.slowest[0] == rank.rank else ""
    columns = "".join(f"{text:>{width}}" for text, width in figures)
    return f"{rank.rank:>5}  {visible(rank.host):<{hosts}}{rank.steps:>7}{columns}{slowest}"
