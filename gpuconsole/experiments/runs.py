"""Is a run slower than other runs? The ratio of the rates of two sides, with its interval: for the
gate, for baselines and for `compare` (see `throughput`).

**One number for each run.** The steps within a run are correlated, and they do not show what
differs between two starts of the same program: the layout of memory, the placement of threads, the
neighbours on the machine. So a run counts once, with the log of its mean rate, and the noise is the
spread between runs of the same side.

**When the runs were measured.** Runs of one host with less than BATCH_GAP_S between them are one
*occasion*. What changes slowly (another machine of the same kind, temperature, load of the day) is
the same for all runs of an occasion. So there are two designs:

- *In turn*: all runs of both sides are one occasion, and the mean places of the two sides in the
  order of time differ by one place at most (A B, A B B A, A B A B A B). A slow drift then changes
  the ratio by no more than it changes from one run to the next. A run is the unit.
- *Apart*: for example kept runs of earlier days, or A A A B B B. All runs of an occasion share its
  level, so more runs of it add little. An occasion is the unit, with the mean of its runs.

**The interval.** The ratio is the difference of the mean log rates. Each side has its own standard
deviation between units (Welch 1947), because the two programs may be unequally noisy. A side with
one unit shows no deviation. It gets the largest of three: LONE_RUN, the deviation of the other
side, and the deviation that the steps of the run show. Two units can agree by chance, so a side
with two units gets the measured or the assumed deviation, whichever gives the wider interval. Three
units that agree by chance seem to add no noise beside ten others. So with unequal numbers of units,
the degrees of freedom are at most one more than those of the smaller side.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from gpuconsole.experiments.statistics import ALPHA, MIN_BLOCKS, student_quantile
from gpuconsole.model.comparison import GateRatio
from gpuconsole.session.figures.rate import RateBlock, estimate

BATCH_GAP_S = 600.0
"""Two runs of a host belong to one occasion where less time than this lies between them. Our
choice: the checkout and the build of another commit take less."""
LONE_RUN = 0.05
"""Assumed standard deviation between the runs of a side with one unit. Runs on a shared machine
that differ by more are rare (six equal runs differed by 2.7 %)."""
LONE_DEGREES = 16
"""Degrees of freedom of LONE_RUN. In practice, a measured side has fewer."""
MAX_UNSURE_UNITS = 2
"""Up to this number of units, the units of a side may agree by chance."""
UNSURE_DEGREES = 0.5
"""Taken off the degrees of freedom of sides with unequal numbers of units: see "The interval". With
it, no simulated row has more than 1 in 40 false regressions at the limit
(`benchmarks/gate/simulated.py`); without it and without the limit of one more than those of the
smaller side, up to 1 in 30."""
MAX_DEGREES = 200


class RunRate(NamedTuple):
    """The rate of a run: the log of the rate, the standard error of this log from the steps of the
    run, and when and where the run was measured.

    `begun` and `ended`: Unix seconds, None where the snapshot does not have them.
    """

    log_rate: float
    error: float = 0.0
    host: str = ""
    begun: float | None = None
    ended: float | None = None


def of_blocks(blocks: Sequence[RateBlock]) -> RunRate | None:
    """The mean of a metric of a run with these `blocks`; None with too few blocks, or where the
    mean has no log."""
    if len(blocks) < MIN_BLOCKS or sum(block.rate * block.seconds for block in blocks) <= 0:
        return None
    mean, error, _ = estimate(blocks)
    return RunRate(math.log(mean), error)


def ratio_of(base: Sequence[RunRate], new: Sequence[RunRate]) -> GateRatio:
    """The ratio of the rates of the two sides, with its interval. Each side has one run or more."""
    if interleaved(base, new):
        return _ratio([[run] for run in base], [[run] for run in new], True, (1, 1))
    old, now = batches(base), batches(new)
    return _ratio(old, now, False, (len(old), len(now)))


def interleaved(base: Sequence[RunRate], new: Sequence[RunRate]) -> bool:
    """Whether both sides were measured on one occasion, in turn."""
    if any(run.begun is None for run in (*base, *new)) or len(batches([*base, *new])) > 1:
        return False
    order = sorted(
        [(run.begun or 0.0, side) for side, runs in ((0, base), (1, new)) for run in runs]
    )
    places = [
        statistics.fmean(place for place, (_, of) in enumerate(order) if of == side)
        for side in (0, 1)
    ]
    return abs(places[0] - places[1]) <= 1


def batches(runs: Sequence[RunRate]) -> list[list[RunRate]]:
    """The runs by occasion, the oldest first. Runs without a time count as one occasion."""
    split: list[list[RunRate]] = []
    for host in dict.fromkeys(run.host for run in runs):
        here = sorted((run for run in runs if run.host == host), key=lambda run: run.begun or 0.0)
        split.append(here[:1])
        for before, run in pairwise(here):
            apart = (
                before.ended is not None
                and run.begun is not None
                and run.begun - before.ended > BATCH_GAP_S
            )
            split += [[run]] if apart else []
            if not apart:
                split[-1].append(run)
    return split


Units = Sequence[Sequence[RunRate]]


def _ratio(base: Units, new: Units, turns: bool, times: tuple[int, int]) -> GateRatio:
    """`base`, `new`: the runs of each unit of a side (see `batches`; in turn, one run is a
    unit)."""
    levels = [
        [statistics.fmean(run.log_rate for run in unit) for unit in side] for side in (base, new)
    ]
    half, spread, assumed = _welch(base, new, levels)
    middle = statistics.fmean(levels[1]) - statistics.fmean(levels[0])
    estimated, low, high = (
        math.exp(max(-20.0, min(20.0, value))) for value in (middle, middle - half, middle + half)
    )
    return GateRatio(estimated, low, high, turns, times, spread, assumed)


class _Deviation(NamedTuple):
    """The variance between the units of a side, its degrees of freedom, and whether it is
    assumed."""

    variance: float
    degrees: int
    assumed: bool = False

    @property
    def reach(self) -> float:
        return student_quantile(self.degrees, ALPHA) * math.sqrt(self.variance)


def _welch(base: Units, new: Units, levels: Sequence[Sequence[float]]) -> tuple[float, float, bool]:
    """The half-width of the interval, the larger of the deviations of the two sides between units,
    and whether a deviation is assumed."""
    own: list[_Deviation | None] = [
        _Deviation(statistics.variance(side), len(side) - 1) if len(side) > 1 else None
        for side in levels
    ]
    chosen = [_deviation(base, own[0], own[1]), _deviation(new, own[1], own[0])]
    parts = [
        (side.variance / len(units), side.degrees)
        for side, units in zip(chosen, levels, strict=True)
    ]
    total, below = (
        sum(part for part, _ in parts),
        sum(part * part / degrees for part, degrees in parts),
    )
    degrees = total * total / below if below > 0 else LONE_DEGREES
    few, many = sorted(side.degrees for side in chosen)
    if chosen[0] is chosen[1]:  # one side lends its deviation to the other
        degrees = few
    elif few != many and own == chosen:
        degrees = min(few + 1, degrees - UNSURE_DEGREES)
    half = student_quantile(max(1, min(MAX_DEGREES, math.floor(degrees))), ALPHA) * math.sqrt(total)
    return (
        half,
        math.sqrt(max(side.variance for side in chosen)),
        any(side.assumed for side in chosen),
    )


def _deviation(
    units: Sequence[Sequence[RunRate]], own: _Deviation | None, other: _Deviation | None
) -> _Deviation:
    """The deviation of a side: its `own`, an assumed one, or that of the other side (see "The
    interval")."""
    ways = [own] if own is not None else [other] if other is not None else []
    if len(units) <= MAX_UNSURE_UNITS:
        within = statistics.fmean(_variance_within(unit) / len(unit) for unit in units)
        ways.append(_Deviation(max(LONE_RUN**2, within), LONE_DEGREES, True))
    return max(ways, key=lambda way: way.reach)


def squares_in(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The sum of squares within groups, and its degrees of freedom."""
    return sum(
        statistics.variance(group) * (len(group) - 1) for group in groups if len(group) > 1
    ), sum(len(group) - 1 for group in groups)


def _variance_within(runs: Sequence[RunRate]) -> float:
    """The variance of a run among the runs of one occasion: their spread, or what their steps show,
    whichever is larger."""
    by_steps = statistics.fmean(run.error**2 for run in runs)
    return (
        max(by_steps, statistics.variance(run.log_rate for run in runs))
        if len(runs) > 1
        else by_steps
    )


def unix_s(started: str) -> float | None:
    """A time as in a snapshot, in Unix seconds; None where it is not known."""
    try:
        return datetime.datetime.fromisoformat(started).timestamp()
    except ValueError:
        return None
