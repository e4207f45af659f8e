"""A sweep: the throughput of each setting."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model.experiments.sweep import Sweep, SweepPoint
from gpuconsole.model.knobs.knob import show
from gpuconsole.report import units
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Report, Table, text

BAR = 30


def sweep_report(sweep: Sweep, names: Sequence[str]) -> Report:
    """Each point with mean, standard deviation and interval, and a bar as long as its mean. `names`: the varied knobs."""
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
        Table(columns, [_row(sweep, point, names) for point in sweep.points]),
        text(f"The intervals of all {len(sweep.points)} settings hold together with 95 % probability, after every round.", "dim"),
    ]


def setting(point: SweepPoint, names: Sequence[str]) -> str:
    """`batch_size=4 precision=bf16`."""
    return " ".join(f"{name}={show(point.knobs[name])}" for name in names)


def _row(sweep: Sweep, point: SweepPoint, names: Sequence[str]) -> list[Segment]:
    settings = [(setting(point, names), "")]
    mean, best = point.mean, sweep.best
    if mean is None or point.low is None or point.high is None or best is None or not best.mean:
        return [*settings, (units.NA, "dim"), ("", ""), ("", ""), (point.error or "too few repeats", "alert")]
    low, high = (units.rate(one, 0) for one in (point.low, point.high))
    bar = "█" * round(BAR * mean / best.mean)
    style = "good" if point is best else ""
    if point is best:
        note = "highest, not proven" if sweep.rivals else "best"
    elif point in sweep.rivals:
        note = "may be the best"
    else:
        note = "slower, settled early" if point.settled and len(point.rates) < len(best.rates) else "slower"
    return [*settings, (units.spread(mean, point.std, 0), style), (f"[{low}, {high}]", ""), (bar, "trace"), (note, style)]
