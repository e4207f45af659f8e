"""Statistics of a trial under the traffic of other clients: what the server did in each block,
whether the blocks had the same load, and the verdict.

The clients decide how many requests come. So the tokens per second of a block say little about the
server: a server that keeps up has the rate of the load. The figure that decides is the time of an
output token, waiting included: request-seconds in the server (running and waiting) over the tokens
of the block. If twice as many requests come to a server with room, the request-seconds and the
tokens both double. In a closed loop its inverse is the throughput of one client (Little's law:
Little 1961). vLLM's authors call the same figure of a whole run normalized latency (Kwon et al.
2023). It needs no request to end within the block.

Two blocks have the same load in either of two cases. Clients that do not wait for answers: the
arrivals per second are the same. Clients that wait for their answers, so that a faster server gets
more requests: the number of requests in the server is the same. Arrivals are the requests that left
the server, plus the growth of the requests in the server. All of these come from the server's own
counters.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuconsole.experiments.statistics import (
    BASELINE,
    CHANGED,
    MIN_PAIRS,
    MINIMUM_EFFECT,
    Pairs,
    joint_interval,
    simultaneous_interval,
)
from gpuconsole.model import units
from gpuconsole.model.experiments import BoundMeasured, Meets, Range, Speedup, Verdict
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.serving import LatencyBound
from gpuconsole.session.figures.distributions import PERCENTILES, quantile
from gpuconsole.session.serving import OF_HISTOGRAMS
from gpuconsole.wire.events import ServerState

LEFT = ("requests", "requests_aborted", "requests_failed")
"""Counts of requests that left the server."""
DECIDES = "time_per_token_s"
PRIMARY = (DECIDES, "tokens_per_s")
FIGURES = (*PRIMARY, "ttft_s", "itl_s")
"""The figures that are compared: their intervals hold together."""
WORDS = {
    DECIDES: "time of a token, waiting included",
    "tokens_per_s": "tokens/s",
    "ttft_s": "TTFT",
    "itl_s": "ITL",
}
SAME_LOAD, SAME_MEAN_LOAD = math.log(2.0), math.log(1.1)
"""The load of two blocks, and the mean load of all blocks of both sides, may differ by these
factors."""
EXPLAINS = 0.25
"""A difference of the mean load of a quarter of the effect, in logarithms, does not explain the
effect."""
MAX_COST = math.log(1.25)
"""A change that makes another figure a fifth worse, as far as known, is no win."""
SEEN = 0.02
"""A limit matters if it binds in so many readings, or for so many iterations, of the blocks."""
MIN_READINGS = 5
MIN_TOKENS = 20


class TrafficBlock(NamedTuple):
    """What the server did in a block. `inside`: requests that run or wait, mean; `most_inside`: the
    numbers at the readings. `iterations`: their count up to each bound of tokens, and the whole
    count under infinity. Means in seconds; None where nothing was counted. `latencies`: what the
    histograms of the server gained."""

    seconds: float
    arrivals: float
    inside: float
    readings: tuple[float, ...]
    tokens: float
    ttft_s: float | None
    itl_s: float | None
    iterations: Mapping[float, float]
    latencies: Latencies

    @property
    def figures(self) -> dict[str, float]:
        """Each figure as the logarithm of a speed: more is better."""
        figures = {
            "tokens_per_s": math.log(self.tokens / self.seconds),
            DECIDES: math.log(self.tokens / (self.inside * self.seconds)),
        }
        return figures | {
            name: -math.log(value) for name in ("ttft_s", "itl_s") if (value := getattr(self, name))
        }


def block_of(states: Sequence[ServerState]) -> TrafficBlock | None:
    """The block of these successive readings; None where they are too few, or the server did too
    little. Raises ValueError where it does not report what is needed, and where it restarted
    between them."""
    if len(states) < MIN_READINGS:
        return None
    first, last = states[0], states[-1]
    if any(later.began_again(before) for before, later in itertools.pairwise(states)):
        raise ValueError("the server restarted during the trial")
    needed = {"requests_running", "requests_waiting"}
    if (
        not needed <= first.gauges.keys()
        or "generation_tokens" not in first.totals
        or not any(name in first.totals for name in LEFT)
    ):
        raise ValueError(
            "the server does not report its running and waiting requests, its tokens and its"
            " answers"
        )
    readings = tuple(
        state.gauges["requests_running"] + state.gauges["requests_waiting"] for state in states
    )
    inside = statistics.fmean(
        (before + after) / 2 for before, after in itertools.pairwise(readings)
    )

    def gained(name: str) -> float:
        return last.totals.get(name, 0.0) - first.totals.get(name, 0.0)

    def mean(name: str) -> float | None:
        count = gained(f"{name}_count")
        return gained(f"{name}_sum") / count if count > 0 else None

    tokens, seconds = gained("generation_tokens"), last.t - first.t
    if tokens < MIN_TOKENS or inside <= 0 or seconds <= 0:
        return None
    arrivals = max(0.0, sum(map(gained, LEFT)) + readings[-1] - readings[0])

    def up_to(name: str) -> dict[float, float]:
        old = dict(first.buckets.get(name, ()))
        return {bound: count - old.get(bound, 0.0) for bound, count in last.buckets.get(name, ())}

    iterations = up_to("iteration_tokens")
    if iterations:
        iterations[math.inf] = gained("iteration_tokens_count")
    latencies = {
        name: ObjectiveGain(gained(f"{name}_sum"), count, up_to(name))
        for name in OF_HISTOGRAMS
        if (count := gained(f"{name}_count")) > 0
    }
    return TrafficBlock(
        seconds,
        arrivals,
        inside,
        readings,
        tokens,
        mean("ttft_s"),
        mean("itl_s"),
        iterations,
        latencies,
    )


# --- pairs of blocks ------------------------------------------------------------------------------


class TrafficPair(NamedTuple):
    """A pair of blocks. `first`: the arm of the first of them."""

    first: int
    blocks: Mapping[int, TrafficBlock]

    @property
    def arrivals(self) -> float:
        """The logarithm of the arrivals per second with the change over those without it. Half a
        request is added to each: none may have come."""
        before, changed = (
            (self.blocks[arm].arrivals + 0.5) / self.blocks[arm].seconds
            for arm in (BASELINE, CHANGED)
        )
        return math.log(changed / before)

    @property
    def inside(self) -> float:
        return math.log(self.blocks[CHANGED].inside / self.blocks[BASELINE].inside)

    @property
    def same_load(self) -> bool:
        return min(abs(self.arrivals), abs(self.inside)) <= SAME_LOAD


class Judged(NamedTuple):
    """`effects`: of each figure, how much better it is with the change. `figure`: the one that
    decides. `verdict`: None while nothing is proven; `reason`: of undecided, and of a verdict by
    the objective. `load`: the mean load with the change over that without it. `objective`: its
    bounds on both sides."""

    effects: dict[str, Speedup]
    figure: str
    verdict: Verdict | None
    reason: str
    load: float | None
    pairs: Pairs
    compared: int
    objective: tuple[BoundMeasured, ...] = ()


def judge(
    pairs: Sequence[TrafficPair],
    changes: Knobs,
    before: Knobs,
    engines: int = 1,
    objective: Sequence[LatencyBound] = (),
) -> Judged:
    """What the blocks show so far. `before`: the values of the changed limits without the change.
    `engines`: that share the requests. `objective`: what the user wants kept: with it, a change
    wins only if it keeps all bounds."""
    alike = [pair for pair in pairs if pair.same_load]
    of_figure = {name: Pairs() for name in FIGURES}
    for pair in alike:
        for name, of in of_figure.items():
            speeds = {
                arm: block.figures[name]
                for arm, block in pair.blocks.items()
                if name in block.figures
            }
            if len(speeds) == len(pair.blocks):
                of.add(pair.first, speeds)
    intervals = {
        name: interval
        for name, of in of_figure.items()
        if (interval := joint_interval(of.log_ratios, of.null_log_ratios, len(FIGURES))) is not None
    }
    effects = {
        name: Speedup(*(math.exp(min(20.0, max(-20.0, value))) for value in interval))
        for name, interval in intervals.items()
    }
    means = [
        statistics.fmean(values)
        for values in zip(*((pair.arrivals, pair.inside) for pair in alike), strict=True)
    ]
    load = min(means, key=abs) if means else None
    figure = next(
        (name for name in PRIMARY if name in intervals and intervals[name][1] > MINIMUM_EFFECT),
        DECIDES,
    )

    bounds = measured(
        objective, *([pair.blocks[arm].latencies for pair in alike] for arm in (BASELINE, CHANGED))
    )

    def judged(verdict: Verdict | None, reason: str = "") -> Judged:
        ratio = None if load is None else math.exp(load)
        return Judged(
            effects, figure, verdict, reason, ratio, of_figure[figure], len(alike), bounds
        )

    if len(pairs) >= MIN_PAIRS and (why := why_no_matter(pairs, changes, before, engines)):
        return judged("undecided", why)
    if len(pairs) < MIN_PAIRS:
        return judged(None, f"{len(pairs)} pairs of blocks are too few: {MIN_PAIRS} are needed")
    if len(alike) < MIN_PAIRS or load is None:
        return judged(
            None,
            (
                f"the load differed: {len(alike)} of {len(pairs)} pairs of blocks had the same, and"
                f" {MIN_PAIRS} are needed"
            ),
        )
    effect = max((abs(intervals[name][0]) for name in PRIMARY if name in intervals), default=0.0)
    if abs(load) > max(SAME_MEAN_LOAD, EXPLAINS * effect):
        return judged(None, f"the load differed: {_factor(load)} the requests with the change")
    return judged(*_under(bounds, *_by_figures(intervals), intervals))


Intervals = Mapping[str, tuple[float, float, float]]


def _by_figures(intervals: Intervals) -> tuple[Verdict | None, str]:
    """The verdict without an objective, and its reason."""
    better, worse = _better(intervals), _worse(intervals)
    dearer = [name for name, (mean, _, _) in intervals.items() if mean < -MAX_COST]
    if worse and set(better) & set(PRIMARY):
        return (
            "undecided",
            f"a trade: {_listed(better, intervals)}, but {_listed(worse, intervals)}",
        )
    if set(worse) & set(PRIMARY):
        return "worse", ""
    if set(better) & set(PRIMARY):
        return (
            (
                None,
                (
                    f"a trade, it seems: {_listed(better, intervals)}, but"
                    f" {_listed(dearer, intervals)}"
                ),
            )
            if dearer
            else ("win", "")
        )
    if all(name in intervals and intervals[name][2] < MINIMUM_EFFECT for name in PRIMARY):
        return "no_gain", ""
    return None, "the traffic varies more than the limit changes"


def _under(
    bounds: Sequence[BoundMeasured], verdict: Verdict | None, reason: str, intervals: Intervals
) -> tuple[Verdict | None, str]:
    """The verdict with the user's objective: what begins to keep it wins, what breaks it is worse,
    and no other change wins that does not keep it."""
    if not bounds:
        return verdict, reason
    before, after = (
        all_meet([bound.before_meets for bound in bounds]),
        all_meet([bound.after_meets for bound in bounds]),
    )
    words = "; ".join(map(in_words, bounds))
    if (before, after) == ("no", "yes"):
        worse = _worse(intervals)
        return "win", f"meets the objective: {words}" + (
            f"; the price: {_listed(worse, intervals)}" if worse else ""
        )
    if (before, after) == ("yes", "no"):
        return "worse", f"breaks the objective: {words}"
    if verdict is None:
        return None, reason
    if verdict == "win" and after == "yes":
        return "win", f"keeps the objective: {words}"
    figures = reason or (
        _listed(_better(intervals) or _worse(intervals), intervals)
        if verdict != "no_gain"
        else "no difference in tokens/s"
    )
    if "unknown" in (before, after) and (after != "no" or before != "no"):
        return None, f"the objective is not proven: {words}; {figures}"
    return (
        ("undecided", f"{figures}, but the objective is missed: {words}")
        if verdict == "win"
        else (verdict, reason)
    )


def _better(intervals: Intervals) -> list[str]:
    return [name for name, (_, low, _) in intervals.items() if low > MINIMUM_EFFECT]


def _worse(intervals: Intervals) -> list[str]:
    return [name for name, (_, _, high) in intervals.items() if high < -MINIMUM_EFFECT]


def why_no_matter(pairs: Sequence[TrafficPair], changes: Knobs, before: Knobs, engines: int) -> str:
    """Why the load is too small for the limits to matter; empty where it is not, or where nothing
    tells."""
    blocks = [block for pair in pairs for block in pair.blocks.values()]
    reasons = []
    for name, value in changes.items():
        limit = min(float(value), float(before[name]))
        if name == "max_num_seqs":
            readings = [reading for block in blocks for reading in block.readings]
            if sum(reading >= limit * engines for reading in readings) > SEEN * len(readings):
                return ""
            reasons.append(
                f"at most {max(readings):.0f} requests were in the server, below the limit of"
                f" {limit * engines:.0f} (--max-num-seqs)"
            )
        else:
            bounds = sorted(
                {bound for block in blocks for bound in block.iterations if bound <= limit}
            )
            whole = sum(block.iterations.get(math.inf, 0.0) for block in blocks)
            if (
                not bounds
                or not whole
                or sum(block.iterations.get(bounds[-1], 0.0) for block in blocks)
                < (1 - SEEN) * whole
            ):
                return ""
            reasons.append(
                f"nearly all iterations had {bounds[-1]:.0f} tokens or fewer, below the limit of"
                f" {limit:.0f} (--max-num-batched-tokens)"
            )
    return f"the load is too small for the limit to matter: {'; '.join(reasons)}" if reasons else ""


def _listed(names: Sequence[str], intervals: Intervals) -> str:
    return ", ".join(f"{WORDS[name]} {_factor(intervals[name][0])} as good" for name in names)


def _factor(log_ratio: float) -> str:
    return f"{math.exp(log_ratio):.2f}x"


# --- whether each side keeps the latencies that the user wants kept (`--slo ttft_p99=0.5`) --------
# The server's histograms know the mean, and of each value only its bucket. p99 is at most 0.5 s if
# at most 1 % of the values are above 0.5 s. So the share of the values above the limit is taken of
# each block: of those that are certainly above it, and of those that may be, because their bucket
# has the limit inside. The shares of the blocks have an interval like all figures of the trial, and
# the whole interval must be on one side.

MIN_ERRORS_BEYOND = 3.0
"""A percentile is kept if so many values are expected beyond it: of 300 values none beyond p99 has
a chance of 5 % where 1 % are (the rule of three: Hanley and Lippman-Hand 1983)."""


class ObjectiveGain(NamedTuple):
    """What a histogram of a server gained in a block: the sum of the values, their number `n`, and
    their number up to each bound."""

    total: float
    n: float
    up_to: Mapping[float, float]

    def above(self, limit: float) -> tuple[float, float]:
        """The share of the values above `limit`: at least, and at most."""
        at_least = next(
            (count for bound, count in sorted(self.up_to.items()) if bound >= limit), self.n
        )
        at_most = next(
            (count for bound, count in sorted(self.up_to.items(), reverse=True) if bound <= limit),
            0.0,
        )
        return 1 - at_least / self.n, 1 - at_most / self.n


Latencies = Mapping[str, ObjectiveGain]
"""What the histograms gained in a block, by figure."""


def measured(
    objective: Sequence[LatencyBound], before: Sequence[Latencies], after: Sequence[Latencies]
) -> tuple[BoundMeasured, ...]:
    """Each bound on both sides, from their blocks. The intervals of all bounds hold together."""
    found = []
    for bound in objective:
        (range_before, meets_before), (range_after, meets_after) = (
            _side(bound, side, 2 * len(objective)) for side in (before, after)
        )
        found.append(
            BoundMeasured(
                bound.name, bound.limit_s, range_before, range_after, meets_before, meets_after
            )
        )
    return tuple(found)


def _side(
    bound: LatencyBound, blocks: Sequence[Latencies], intervals: int
) -> tuple[Range | None, Meets]:
    found = [latencies[bound.figure] for latencies in blocks if bound.figure in latencies]
    count = sum(gained.n for gained in found)
    if bound.statistic == "mean":
        if not found:
            return None, "unknown"
        mean = sum(gained.total for gained in found) / count
        span: Range = (mean, mean)
        values, allowed, beyond = (
            [(gained.total / gained.n,) * 2 for gained in found],
            bound.limit_s,
            math.inf,
        )
    else:
        bounds = sorted(set.intersection(*(set(gained.up_to) for gained in found))) if found else []
        if not bounds:
            return None, "unknown"
        share = PERCENTILES[bound.statistic]
        _, span = quantile(
            share,
            count,
            {upper: sum(gained.up_to[upper] for gained in found) for upper in bounds},
            bounds,
        )
        values, allowed, beyond = (
            [gained.above(bound.limit_s) for gained in found],
            1 - share,
            (1 - share) * count,
        )
    least, most = (simultaneous_interval(side, intervals) for side in zip(*values, strict=True))
    if len(found) < MIN_PAIRS or least is None or most is None:
        return span, "unknown"
    return span, "no" if least[0] > allowed else "yes" if most[
        1
    ] <= allowed and beyond >= MIN_ERRORS_BEYOND else "unknown"


def all_meet(meets: Sequence[Meets]) -> Meets:
    """Whether all bounds are kept."""
    return "no" if "no" in meets else "unknown" if "unknown" in meets else "yes"


PROVEN = {"yes": "kept", "no": "missed", "unknown": "not proven"}


def in_words(bound: BoundMeasured) -> str:
    """`ttft_p99 at most 500 ms: 250 to 500 ms with the change (kept), 500 to 750 ms without it
    (missed)`."""
    sides = (
        (bound.after_s, bound.after_meets, "with the change"),
        (bound.before_s, bound.before_meets, "without it"),
    )
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
