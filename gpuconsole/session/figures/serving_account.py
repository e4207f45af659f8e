"""The account of serving runs: the parts of a request's time, and the rates."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from gpuconsole.model.run import Distribution, Step, Summary
from gpuconsole.model.serving import Objective, Request
from gpuconsole.session.figures.account import distribution, rates
from gpuconsole.session.figures.latencies import weighted

RATE_BLOCK_S = 1.0


def summarize_serving(
    requests: Sequence[Request], ticks: Sequence[Step], objective: Objective | None, of_gaps: Sequence[Request] | None = None
) -> Summary:
    """The figures of `requests` and of the load generator's `ticks` in the same time.

    `of_gaps`: the requests whose gaps are used (None: all). Goodput is the rate of answered requests, multiplied by the share of them that meet
    the objective.
    """
    good = [request for request in requests if not request.error]
    summary = Summary(steps=len(ticks), requests=len(good), failed_requests=len(requests) - len(good))
    if ticks:
        summary.tokens_per_s = distribution(rates(ticks, "tokens", RATE_BLOCK_S))
        summary.requests_per_s = distribution(rates(ticks, "samples", RATE_BLOCK_S))
        summary.samples_per_s = summary.requests_per_s
    summary.ttft_s = _of(good, lambda request: request.ttft_s)
    summary.tpot_s = _of(good, lambda request: request.tpot_s)
    summary.e2e_s = _of(good, lambda request: request.e2e_s)
    summary.client_queue_s = _of(good, lambda request: request.client_queue_s)
    gapped = good if of_gaps is None else [request for request in of_gaps if not request.error]
    summary.itl_s = weighted(itl_pairs(gapped))
    summary.chunk_gap_s = weighted((gap, 1.0) for request in gapped for gap in request.gaps)
    if objective is not None and good and summary.requests_per_s is not None:
        summary.goodput_per_s = summary.requests_per_s.mean * sum(map(objective.met, good)) / len(good)
    return summary


def add_served_work(
    summary: Summary, rates_per_s: Mapping[str, float], peak: tuple[float, str] | None, memory_peak: tuple[float, str] | None
) -> None:
    """Add MFU and MBU from the server's counters of FLOPs and bytes (`flops`, `read_bytes`), if the counters exist and a peak is known."""
    summary.flops_per_s, summary.memory_bytes_per_s = rates_per_s.get("flops"), rates_per_s.get("read_bytes")
    if summary.flops_per_s and peak:
        summary.mfu_ratio, summary.mfu_peak_source = summary.flops_per_s / peak[0], peak[1]
    if summary.memory_bytes_per_s and memory_peak:
        summary.mbu_ratio, summary.mbu_peak_source = summary.memory_bytes_per_s / memory_peak[0], memory_peak[1]


def itl_pairs(requests: Sequence[Request]) -> list[tuple[float, float]]:
    """Gaps between tokens, each with its count: a chunk of k tokens after a gap is k gaps of gap/k."""
    return [(gap / count, count) for r in requests for gap, count in zip(r.gaps, r.counts, strict=False) if count > 0]


def request_shares(requests: Sequence[Request], server: dict[str, float]) -> dict[str, float]:
    """The share of each part in the time of a request, from mean times of the client and of the server (`queue_s`, `prefill_s`, `decode_s`).

    Empty where the server does not report these times. The rest of E2E is `transport`: network, HTTP, and the event loops at both ends.
    """
    good = [request for request in requests if not request.error and request.e2e_s is not None]
    if not good or not {"queue_s", "prefill_s", "decode_s"} <= server.keys():
        return {}
    client = statistics.fmean(request.client_queue_s for request in good)
    e2e = statistics.fmean(request.e2e_s or 0.0 for request in good)
    parts = {"client_queue": client, **{name: server[f"{name}_s"] for name in ("queue", "prefill", "decode")}}
    parts["transport"] = max(0.0, e2e - sum(parts.values()) + client)
    total = sum(parts.values())
    return {name: seconds / total for name, seconds in parts.items()} if total > 0 else {}


def _of(requests: Sequence[Request], value: Callable[[Request], float | None]) -> Distribution | None:
    return distribution([found for request in requests if (found := value(request)) is not None])
