"""The time account of a run: the phases of its steps, its rates, and the time from which it is steady."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from gpuconsole.model.run import PHASES, Distribution, Step, Summary

STEADY_STEPS = 8
STEADY_SPAN_S = 2.0
STEADY_TREND = 0.02
"""A trend below 2 % is steady (rolling-median slope, as profine uses)."""
STEADY_SIGMAS = 2.5


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of `ordered` lies, nearest rank."""
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1 if share > 0 else 0)]


def distribution(values: Sequence[float]) -> Distribution | None:
    """Mean, sample standard deviation and percentiles; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    std = statistics.stdev(ordered) if len(ordered) > 1 else 0.0
    p50, p90, p95, p99 = (percentile(ordered, share) for share in (0.50, 0.90, 0.95, 0.99))
    return Distribution(statistics.fmean(ordered), std, len(ordered), p50, p90, p95, p99)


def wall_shares(steps: Sequence[Step]) -> dict[str, float]:
    """The share of each phase in the wall time of all steps. The shares sum to 1. Empty without steps."""
    total = sum(step.wall_s for step in steps)
    if total <= 0:
        return {}
    sums = [sum(step.phases[i] for step in steps) for i in range(len(PHASES))]
    return {name: value / total for name, value in zip(PHASES, sums, strict=True)}


def runq_ratio(steps: Sequence[Step]) -> float | None:
    """Run-queue delay over wall time, from the steps for which the delay was read; None without such steps."""
    sampled = [step for step in steps if step.runq is not None]
    wall = sum(step.wall_s for step in sampled)
    return sum(sum(step.runq or ()) for step in sampled) / wall if wall > 0 else None


def contention_free_shares(steps: Sequence[Step]) -> dict[str, float]:
    """Phase shares without run-queue delay: (phase wall - phase delay) / (step wall - step delay).

    Wall time comes from all steps. The distribution of the delay over the phases comes from the sampled steps. Without sampled steps the
    result is the same as the result of `wall_shares`.
    """
    shares = wall_shares(steps)
    sampled = [step for step in steps if step.runq is not None]
    wall = sum(step.wall_s for step in sampled)
    if not shares or wall <= 0:
        return shares
    delays = [sum(step.runq[i] for step in sampled if step.runq) / wall for i in range(len(PHASES))]
    left = [max(0.0, shares[name] - delay) for name, delay in zip(PHASES, delays, strict=True)]
    total = sum(left)
    return {name: value / total for name, value in zip(PHASES, left, strict=True)} if total > 0 else shares


def steady_from(steps: Sequence[Step]) -> int | None:
    """The index in `steps` from which step time has no trend; None while it has a trend.

    The last steps (at least 8, and at least 2 s) are split into two halves. Steady means that the medians of the halves differ by less than 2 %,
    or by no more than the noise between steps explains.
    """
    start, span = len(steps), 0.0
    while start > 0 and (span < STEADY_SPAN_S or len(steps) - start < STEADY_STEPS):
        start -= 1
        span += steps[start].wall_s
    window = [step.wall_s for step in steps[start:]]
    if span < STEADY_SPAN_S or len(window) < STEADY_STEPS:
        return None
    first, second = window[: len(window) // 2], window[len(window) // 2 :]
    change = abs(math.log(statistics.median(second) / statistics.median(first)))
    noise = math.hypot(_median_error(first), _median_error(second))
    return start if change < max(STEADY_TREND, STEADY_SIGMAS * noise) else None


def _median_error(values: list[float]) -> float:
    """Relative standard error of the median, from the median absolute deviation. A few slow steps hardly change it."""
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return 1.2533 * spread / middle / math.sqrt(len(values))


def rates(steps: Sequence[Step], what: str, block_s: float = 0.5) -> list[float]:
    """`tokens` or `samples` per second of step time, in blocks of at least `block_s`."""
    found, amount, span = [], 0, 0.0
    for step in steps:
        amount += getattr(step, what)
        span += step.wall_s
        if span >= block_s:
            found.append(amount / span)
            amount, span = 0, 0.0
    if not found and span > 0:
        found.append(amount / span)
    return found


def summarize(steps: Sequence[Step], flops_per_sample: float | None, peak: tuple[float, str] | None) -> Summary:
    """The figures of `steps`. `peak`: the reference FLOP/s for MFU, and the source of that figure."""
    summary = Summary(steps=len(steps), phases_ratio=wall_shares(steps), step_time_s=distribution([s.wall_s for s in steps]))
    if not steps:
        return summary
    wall = sum(step.wall_s for step in steps)
    if any(step.samples for step in steps):  # else they are not known: a job may call no model with a batch
        summary.samples_per_s = distribution(rates(steps, "samples"))
    if any(step.tokens for step in steps):
        summary.tokens_per_s = distribution(rates(steps, "tokens"))
    if flops_per_sample:
        summary.flops_per_s = flops_per_sample * sum(step.samples for step in steps) / wall
        if peak:
            summary.mfu_ratio, summary.mfu_peak_source = summary.flops_per_s / peak[0], peak[1]
    losses = [step.loss for step in steps if step.loss is not None]
    if losses:
        few = max(1, min(10, len(losses) // 5))
        summary.loss_first, summary.loss_last = statistics.fmean(losses[:few]), statistics.fmean(losses[-few:])
    return summary


def add_bandwidth(summary: Summary, steps: Sequence[Step], bytes_per_sample: float | None, peak: tuple[float, str] | None) -> None:
    """Add the minimum bytes per second of `steps`, if the workload reports the bytes of a sample. `peak`: the reference bandwidth for MBU."""
    wall = sum(step.wall_s for step in steps)
    if not bytes_per_sample or wall <= 0:
        return
    summary.memory_bytes_per_s = bytes_per_sample * sum(step.samples for step in steps) / wall
    if peak:
        summary.mbu_ratio, summary.mbu_peak_source = summary.memory_bytes_per_s / peak[0], peak[1]
