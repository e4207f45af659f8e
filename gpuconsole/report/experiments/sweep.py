"""A sweep: the throughput of each setting."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model.experiments.sweep import Sweep, SweepPoint
from gpuconsole.model.knobs.knob import show
from gpuconsole.report import units
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Report, Table, text

BAR = 30
Bounds = tuple[float, float] | None


def sweep_report(sweep: Sweep, names: Sequence[str], bounds: Sequence[Bounds]) -> Report:
    """Each point with mean, standard deviation and interval, and a bar as long as its mean.

    `names`: the varied knobs. `bounds`: the interval of each point's mean, None where there are too few repeats.
    """
    head = f"{sweep.scenario} on {sweep.device}, {sweep.clock.replace('_', '-')} clock, {sweep.repeats} interleaved repeats, {sweep.elapsed_s:.0f} s"
    columns = (
        Column("setting"),
        Column(sweep.unit, ">"),
        Column("interval"),
        Column("", least=8, drop=1),
        Column("", least=4),
    )
    return [
        text(head, "title"),
        Table(columns, [_row(point, names, one, sweep.best) for point, one in zip(sweep.points, bounds, strict=True)]),
    ]


def _row(point: SweepPoint, names: Sequence[str], bounds: Bounds, best: SweepPoint | None) -> list[Segment]:
    settings = [(" ".join(f"{name}={show(point.knobs[name])}" for name in names), "")]
    mean = point.mean
    if mean is None or bounds is None or best is None or not best.mean:
        return [*settings, (units.NA, "dim"), ("", ""), ("", ""), (point.error or "too few repeats", "alert")]
    note = "best" if point is best else "settled early" if point.settled and len(point.rates) < len(best.rates) else ""
    low, high = (units.rate(one, 0) for one in bounds)
    bar = "█" * round(BAR * mean / best.mean)
    style = "good" if point is best else ""
    return [*settings, (units.spread(mean, point.std, 0), style), (f"[{low}, {high}]", ""), (bar, "trace"), (note, style)]
