"""The account of a run: the phases of its steps or the parts of its requests, its rates, and the
time from which it is steady."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gpuconsole.model.run import Distribution, Step, Summary
from gpuconsole.model.serving import Objective, Request
from gpuconsole.session.figures.distributions import distribution, weighted
from gpuconsole.session.figures.flops import SampleFlops
from gpuconsole.session.figures.peak import utilization
from gpuconsole.session.figures.rate import (
    Work,
    blocks_of,
    rate_distribution,
    samples_of,
    tokens_of,
)
from gpuconsole.session.figures.totals import Totals

# --- steps ----------------------------------------------------------------------------------------

STEADY_STEPS = 8
STEADY_SPAN_S = 2.0
STEADY_TREND = 0.02
"""A trend below 2 % is steady (rolling-median slope, as profine uses)."""
STEADY_SIGMAS = 2.5
PERCENTILES = ("p50", "p90", "p95", "p99")
BLOCK_S = 0.5
"""Least seconds of a block of steps, for the spread of a rate."""


def runq_ratio(steps: Sequence[Step]) -> float | None:
    """Run-queue delay over wall time of `steps`; None where the delay was read for none of them."""
    return Totals(steps).runq_ratio


def steady_from(steps: Sequence[Step]) -> int | None:
    """The index in `steps` from which step time has no trend; None while it has a trend.

    The last steps (at least 8, and at least 2 s) are split into two halves. Steady means that the
    medians of the halves differ by less than 2 %, or by no more than the noise between steps
    explains.
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
    """Relative standard error of the median, from the median absolute deviation. A few slow steps
    hardly change it."""
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return 1.2533 * spread / middle / math.sqrt(len(values))


def _rate(steps: Sequence[Step], work: Work, block_s: float, mean: float) -> Distribution | None:
    """The rate `mean`, with the spread and the percentiles of the blocks of `steps`."""
    spread = rate_distribution(blocks_of(steps, work, block_s))
    return spread and replace(spread, mean=mean)


def summarize(
    steps: Sequence[Step],
    totals: Totals,
    work: SampleFlops | None,
    peak: tuple[float, str] | None,
) -> Summary:
    """The figures of the steps that `totals` sums up. `steps`: the last of them, for the spread and
    the percentiles. `work`: FLOPs of a sample. `peak`: the reference FLOP/s for MFU, and the source
    of that figure."""
    summary = Summary(steps=totals.steps, phases_ratio=totals.shares())
    if not steps:
        return summary
    summary.step_time_s = totals.step_time(steps)
    summary.runq_ratio = totals.runq_ratio
    # else they are not known: a job may call no model with a batch
    if totals.samples:
        rate = totals.per_s(totals.samples)
        summary.samples_per_s = _rate(steps, samples_of, BLOCK_S, rate)
    if totals.tokens:
        summary.tokens_per_s = _rate(steps, tokens_of, BLOCK_S, totals.per_s(totals.tokens))
    if work is not None and work.full:
        rate = totals.per_s(totals.samples)
        summary.flops_per_s = work.full * rate
        of_hardware = utilization((work.full + work.recomputed) * rate, peak) if peak else None
        summary.mfu_above_peak = peak is not None and of_hardware is None
        if peak and of_hardware is not None:
            summary.mfu_ratio = utilization(summary.flops_per_s, peak)
            summary.mfu_peak_source = "; ".join(filter(None, (peak[1], work.source)))
            summary.mfu_causal_ratio = (
                utilization(work.causal * rate, peak) if work.causal else None
            )
            summary.hfu_ratio = of_hardware if work.recomputed else None
            summary.mfu_at_least = work.at_least
    losses = [step.loss for step in steps if step.loss is not None]
    if losses:
        summary.loss_last = statistics.fmean(losses[-max(1, min(10, len(losses) // 5)) :])
    return summary


def add_bandwidth(
    summary: Summary,
    totals: Totals,
    bytes_per_sample: float | None,
    peak: tuple[float, str] | None,
) -> None:
    """Add the minimum bytes per second of the steps that `totals` sums up, if the workload reports
    the bytes of a sample. `peak`: the reference bandwidth for MBU."""
    if not bytes_per_sample or not totals.steps:
        return
    summary.memory_bytes_per_s = bytes_per_sample * totals.per_s(totals.samples)
    if peak:
        summary.mbu_ratio, summary.mbu_peak_source = summary.memory_bytes_per_s / peak[0], peak[1]


RATES = ("tokens_per_s", "samples_per_s", "flops_per_s", "memory_bytes_per_s")


def of_all_processes(summary: Summary, ratio: float) -> Summary:
    """A copy of `summary` with `ratio` times its rates."""
    rates: dict[str, Distribution | float | None] = {}
    for name in RATES:
        rate = getattr(summary, name)
        if isinstance(rate, Distribution):
            parts = {part: getattr(rate, part) for part in ("mean", "std", *PERCENTILES)}
            scaled = {part: value * ratio for part, value in parts.items() if value is not None}
            rate = replace(rate, **scaled)
        elif rate is not None:
            rate *= ratio
        rates[name] = rate
    return replace(summary, **rates, whole_ratio=summary.whole_ratio * ratio)


# --- requests -------------------------------------------------------------------------------------

RATE_BLOCK_S = 1.0
REQUEST_TIMES = ("ttft_s", "tpot_s", "e2e_s")
"""The times of one request that are figures of the summary and series."""


def summarize_serving(
    requests: Sequence[Request],
    ticks: Sequence[Step],
    objective: Objective | None,
    of_gaps: Sequence[Request] | None = None,
    earlier: Totals | None = None,
) -> Summary:
    """The figures of `requests` and of the load generator's `ticks` in the same time.

    `of_gaps`: the requests whose gaps are used (None: all). `earlier`: the sums of ticks that are
    no longer stored; they count for the rates, and not for their spread. Goodput is the rate of
    answered requests, multiplied by the share of them that meet the objective.
    """
    answered = [request for request in requests if not request.error]
    summary = Summary(requests=len(answered), failed_requests=len(requests) - len(answered))
    totals = Totals(ticks)
    totals.join(earlier or Totals())
    summary.steps = totals.steps
    if spread := rate_distribution(blocks_of(ticks, tokens_of, RATE_BLOCK_S)):
        summary.tokens_per_s = replace(spread, mean=totals.per_s(totals.tokens))
    if spread := rate_distribution(blocks_of(ticks, samples_of, RATE_BLOCK_S)):
        summary.requests_per_s = replace(spread, mean=totals.per_s(totals.samples))
    summary.samples_per_s = summary.requests_per_s
    for field in (*REQUEST_TIMES, "client_queue_s"):
        setattr(summary, field, distribution(request_times(answered, field)))
    gapped = answered if of_gaps is None else [request for request in of_gaps if not request.error]
    summary.itl_s = weighted(itl_pairs(gapped))
    summary.chunk_gap_s = weighted((gap, 1.0) for request in gapped for gap in request.gaps)
    if objective is not None and summary.requests_per_s is not None:
        # an answer in one piece has no TTFT: whether it meets a bound on that is not known
        on_tokens = objective.ttft_s is not None or objective.tpot_s is not None
        judged = [one for one in answered if one.ttft_s is not None or not on_tokens]
        if judged:
            summary.goodput_per_s = (
                summary.requests_per_s.mean * sum(map(objective.met, judged)) / len(judged)
            )
    return summary


def add_served_work(
    summary: Summary,
    rates_per_s: Mapping[str, float],
    peak: tuple[float, str] | None,
    memory_peak: tuple[float, str] | None,
) -> None:
    """Add MFU and MBU from the server's counters of FLOPs and bytes (`flops`, `read_bytes`), if the
    counters exist and a peak is known."""
    summary.flops_per_s, summary.memory_bytes_per_s = (
        rates_per_s.get("flops"),
        rates_per_s.get("read_bytes"),
    )
    if summary.flops_per_s and peak and (mfu := utilization(summary.flops_per_s, peak)) is not None:
        summary.mfu_ratio, summary.mfu_peak_source = mfu, peak[1]
    if summary.memory_bytes_per_s and memory_peak:
        summary.mbu_ratio, summary.mbu_peak_source = (
            summary.memory_bytes_per_s / memory_peak[0],
            memory_peak[1],
        )


def request_times(requests: Sequence[Request], field: str) -> list[float]:
    """The known times `field` of `requests`, in seconds."""
    return [seconds for request in requests if (seconds := getattr(request, field)) is not None]


def itl_pairs(requests: Sequence[Request]) -> list[tuple[float, float]]:
    """Gaps between tokens, each with its count: a chunk of k tokens after a gap is k gaps of
    gap/k."""
    return [
        (gap / count, count)
        for request in requests
        for gap, count in zip(request.gaps, request.counts, strict=False)
        if count > 0
    ]


def server_shares(means: Mapping[str, float]) -> dict[str, float]:
    """The share of each part in the time of a request in the server, from its own means (`queue_s`,
    `prefill_s`, `decode_s`)."""
    parts = {name: means[f"{name}_s"] for name in ("queue", "prefill", "decode")}
    total = sum(parts.values())
    return {name: seconds / total for name, seconds in parts.items()} if total > 0 else {}


def request_shares(requests: Sequence[Request], server: dict[str, float]) -> dict[str, float]:
    """The share of each part in the time of a request, from mean times of the client and of the
    server (`queue_s`, `prefill_s`, `decode_s`).

    Empty where the server does not report these times. The rest of E2E is `transport`: network,
    HTTP, and the event loops at both ends.
    """
    answered = [request for request in requests if not request.error and request.e2e_s is not None]
    if not answered or not {"queue_s", "prefill_s", "decode_s"} <= server.keys():
        return {}
    client = statistics.fmean(request.client_queue_s for request in answered)
    e2e = statistics.fmean(request.e2e_s or 0.0 for request in answered)
    parts = {
        "client_queue": client,
        **{name: server[f"{name}_s"] for name in ("queue", "prefill", "decode")},
    }
    parts["transport"] = max(0.0, e2e - sum(parts.values()) + client)
    total = sum(parts.values())
    return {name: seconds / total for name, seconds in parts.items()} if total > 0 else {}
