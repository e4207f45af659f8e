"""Whether each side of a trial under the traffic of other clients keeps the latencies that the user wants kept (`--slo ttft_p99=0.5`).

The server's histograms know the mean, and of each value only its bucket. p99 is at most 0.5 s if at most 1 % of the values are above 0.5 s. So the share of the
values above the limit is taken of each block: of those that are certainly above it, and of those that may be, because their bucket has the limit inside. The shares of the blocks have
an interval like all figures of the trial, and the whole interval must be on one side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuconsole.experiments.statistics import MIN_PAIRS, simultaneous_interval
from gpuconsole.model import units
from gpuconsole.model.experiments import BoundMeasured, Meets, Range
from gpuconsole.model.serving import LatencyBound
from gpuconsole.session.figures.distributions import PERCENTILES, quantile

LEAST_BEYOND = 3.0
"""A percentile is kept if so many values are expected beyond it: of 300 values none beyond p99 has a chance of 5 % where 1 % are (the rule of three: Hanley and Lippman-Hand 1983)."""


class Gained(NamedTuple):
    """What a histogram of a server gained in a block: the sum of the values, their number `n`, and their number up to each bound."""

    total: float
    n: float
    up_to: Mapping[float, float]

    def above(self, limit: float) -> tuple[float, float]:
        """The share of the values above `limit`: at least, and at most."""
        at_least = next((count for bound, count in sorted(self.up_to.items()) if bound >= limit), self.n)
        at_most = next((count for bound, count in sorted(self.up_to.items(), reverse=True) if bound <= limit), 0.0)
        return 1 - at_least / self.n, 1 - at_most / self.n


Latencies = Mapping[str, Gained]
"""What the histograms gained in a block, by figure."""


def measured(objective: Sequence[LatencyBound], before: Sequence[Latencies], after: Sequence[Latencies]) -> tuple[BoundMeasured, ...]:
    """Each bound on both sides, from their blocks. The intervals of all bounds hold together."""
    found = []
    for bound in objective:
        (range_before, meets_before), (range_after, meets_after) = (_side(bound, side, 2 * len(objective)) for side in (before, after))
        found.append(BoundMeasured(bound.name, bound.limit_s, range_before, range_after, meets_before, meets_after))
    return tuple(found)


def _side(bound: LatencyBound, blocks: Sequence[Latencies], intervals: int) -> tuple[Range | None, Meets]:
    found = [latencies[bound.figure] for latencies in blocks if bound.figure in latencies]
    count = sum(gained.n for gained in found)
    if bound.statistic == "mean":
        if not found:
            return None, "unknown"
        mean = sum(gained.total for gained in found) / count
        span: Range = (mean, mean)
        values, allowed, beyond = [(gained.total / gained.n,) * 2 for gained in found], bound.limit_s, math.inf
    else:
        bounds = sorted(set.intersection(*(set(gained.up_to) for gained in found))) if found else []
        if not bounds:
            return None, "unknown"
        share = PERCENTILES[bound.statistic]
        _, span = quantile(share, count, {upper: sum(gained.up_to[upper] for gained in found) for upper in bounds}, bounds)
        values, allowed, beyond = [gained.above(bound.limit_s) for gained in found], 1 - share, (1 - share) * count
    least, most = (simultaneous_interval(side, intervals) for side in zip(*values, strict=True))
    if len(found) < MIN_PAIRS or least is None or most is None:
        return span, "unknown"
    return span, "no" if least[0] > allowed else "yes" if most[1] <= allowed and beyond >= LEAST_BEYOND else "unknown"


def all_meet(meets: Sequence[Meets]) -> Meets:
    """Whether all bounds are kept."""
    return "no" if "no" in meets else "unknown" if "unknown" in meets else "yes"


PROVEN = {"yes": "kept", "no": "missed", "unknown": "not proven"}


def in_words(bound: BoundMeasured) -> str:
    """`ttft_p99 at most 500 ms: 250 to 500 ms with the change (kept), 500 to 750 ms without it (missed)`."""
    sides = ((bound.after_s, bound.after_meets, "with the change"), (bound.before_s, bound.before_meets, "without it"))
    figures = ", ".join(f"{_range(span)} {side} ({PROVEN[meets]})" for span, meets, side in sides)
    return f"{bound.name} at most {units.duration(bound.limit_s).strip()}: {figures}"


def _range(span: Range | None) -> str:
    if span is None:
        return units.NA
    low, high = span
    if high is None:
        return f"above {units.duration(low).strip()}"
    if low == high:
        return units.duration(low).strip()
    first, second, unit = units.durations(low, high)
    return f"{first.strip()} to {second.strip()} {unit}"
