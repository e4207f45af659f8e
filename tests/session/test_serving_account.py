"""The account of a serving run, on requests that are known to the millisecond."""

from __future__ import annotations

import random

import pytest

from gpuconsole.model.run import Step
from gpuconsole.model.serving import Objective, Request, parse_objective
from gpuconsole.session.figures.breakdown import request_shares, summarize_serving
from gpuconsole.session.figures.distributions import Latencies, weighted
from gpuconsole.session.serving import DRAIN_S, LIVE_GAPS, ServingRecord
from gpuconsole.wire.events import Requests, ServerState

TICKS = [Step(n, 0.5 * (n + 1), 0.5, 2, 20, ()) for n in range(20)]


def request(
    t: float,
    ttft: float = 0.2,
    gaps: int = 9,
    gap: float = 0.02,
    count: float = 1.0,
    error: str = "",
) -> Request:
    e2e = ttft + gaps * gap
    return Request(
        t, 0.001, ttft, e2e, 10, round(1 + gaps * count), (gap,) * gaps, (count,) * gaps, error
    )


def test_a_chunk_of_four_tokens_is_four_gaps_of_a_quarter() -> None:
    summary = summarize_serving([request(1.0, gaps=5, gap=0.08, count=4.0)], TICKS, None)
    assert (
        summary.itl_s is not None and summary.chunk_gap_s is not None and summary.tpot_s is not None
    )
    assert (summary.itl_s.p50, summary.itl_s.n) == (pytest.approx(0.02), 20)
    assert (summary.chunk_gap_s.p50, summary.chunk_gap_s.n) == (pytest.approx(0.08), 5)
    assert summary.tpot_s.p50 == pytest.approx(0.02)


def test_rates_are_those_of_the_ticks_and_goodput_the_share_within_bounds() -> None:
    mixed = [request(n / 4, ttft=0.1 if n % 4 else 0.9) for n in range(40)]
    summary = summarize_serving(
        [*mixed, request(9.0, error="HTTP 429")], TICKS, Objective(ttft_s=0.5)
    )
    assert summary.tokens_per_s is not None and summary.tokens_per_s.mean == pytest.approx(40)
    assert summary.requests_per_s is not None and summary.requests_per_s.mean == pytest.approx(4)
    assert (summary.requests, summary.failed_requests) == (40, 1)
    assert summary.goodput_per_s == pytest.approx(3)


def test_a_live_summary_looks_at_fewer_gaps_and_counts_all_requests() -> None:
    record = ServingRecord()
    record.add_requests(Requests(10.0, [request(n / 100, gaps=50, gap=0.001) for n in range(1000)]))
    live, whole = (record.summary(TICKS, Objective(ttft_s=1.0), live) for live in (True, False))
    assert live.requests == whole.requests == 1000
    assert live.goodput_per_s == whole.goodput_per_s == pytest.approx(4)
    assert live.itl_s is not None and whole.itl_s is not None
    assert live.itl_s.n <= LIVE_GAPS < whole.itl_s.n == 50_000


def test_what_settles_or_is_on_trial_does_not_count() -> None:
    record = ServingRecord()
    one = request(1.0)
    others = [
        Request(*[getattr(one, name) for name in one.__struct_fields__[:-2]], arm, kind)
        for arm, kind in ((1, 0), (0, 1), (0, 2))
    ]
    record.add_requests(Requests(1.0, [one, *others]))
    assert list(record.requests) == [one]


def test_what_the_server_tells_during_a_trial_is_not_of_the_run() -> None:
    record = ServingRecord()
    # seconds that requests had to wait, in all
    queued = {2.0: 0.0, 4.0: 0.0, 6.0: 50.0, 8.0: 90.0, 12.0: 90.0, 14.0: 90.0}
    for n, (t, total) in enumerate(queued.items()):
        record.add_state(
            ServerState(
                t,
                {"requests_waiting": float(5.0 <= t <= 9.0)},
                {"queue_s_sum": total, "queue_s_count": 10.0 * n},
            )
        )
    record.probed(5.0, 9.0)
    assert record.means(0.0)["queue_s"] == 0.0, "it all came in the trial"
    record = ServingRecord()
    for n, (t, total) in enumerate(queued.items()):
        record.add_state(ServerState(t, {}, {"queue_s_sum": total, "queue_s_count": 10.0 * n}))
    assert record.means(0.0)["queue_s"] == pytest.approx(90 / 50)


def test_the_seconds_of_four_engines_are_the_mean_of_their_shares() -> None:
    """Four ranks that are busy 25 % of the time were 100 % in forward passes."""
    record = ServingRecord(watched=True)
    for t in (0.0, 10.0):
        record.add_state(
            ServerState(t, {"engines": 4.0}, {"forward_s": 10 * t / 10, "scheduler_idle_s": 30 * t})
        )
    signals = record.signals(0.0, {}, {})
    assert signals["server.forward_ratio"].value == pytest.approx(0.25)
    assert signals["server.scheduler_idle_ratio"].value == 1.0


def test_a_total_that_falls_alone_begins_again_alone() -> None:
    record = ServingRecord(watched=True)
    for t, (requests, tokens, gaps) in enumerate(
        [(100, 1000, 900), (110, 1100, 990), (120, 40, 1080), (130, 140, 1170)]
    ):
        totals = {"requests": requests, "generation_tokens": tokens, "itl_s_count": gaps}
        buckets = {"itl_s": [(0.1, gaps / 2)]}
        record.add_state(ServerState(float(t), {}, totals | {"itl_s_sum": gaps / 50}, buckets))
    assert record.restarts == 0
    assert record.rates(0.0) == pytest.approx(
        {"requests": 10, "generation_tokens": 80, "itl_s_count": 90, "itl_s_sum": 1.8}
    )


def test_a_restart_counts_from_0_also_what_the_page_lacks_at_first() -> None:
    """SGLang names a counter from its first event on."""
    record = ServingRecord(watched=True)
    for t, totals in enumerate(
        [
            {"requests": 100, "generation_tokens": 1000, "aborted": 7},
            {"requests": 110, "generation_tokens": 1100, "aborted": 7},
            {"requests": 1},
            {"requests": 5, "generation_tokens": 30},
            {"requests": 9, "generation_tokens": 60, "aborted": 1},
        ]
    ):
        record.add_state(ServerState(float(t), {}, {name: float(n) for name, n in totals.items()}))
    assert record.restarts == 1
    assert record.rates(0.0) == pytest.approx(
        {"requests": 19 / 4, "generation_tokens": 160 / 4, "aborted": 1 / 4}
    )


def test_requests_of_a_probe_that_end_after_it_are_not_of_the_run() -> None:
    record = ServingRecord()
    record.probed(5.0, 9.0)
    assert [t for t in (4.9, 5.0, 9.0, 9.0 + DRAIN_S, 9.1 + DRAIN_S) if record.is_own(t)] == [
        4.9,
        9.1 + DRAIN_S,
    ]


def test_shares_of_a_request_add_up_and_what_is_left_is_transport() -> None:
    shares = request_shares([request(1.0)], {"queue_s": 0.05, "prefill_s": 0.1, "decode_s": 0.18})
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["transport"] == pytest.approx(0.05 / 0.381) and shares["queue"] == pytest.approx(
        0.05 / 0.381
    )
    assert request_shares([request(1.0)], {"queue_s": 0.05}) == {}, "a server that does not tell"


def test_buckets_are_within_half_a_percent_of_exact_percentiles() -> None:
    values = [random.Random(n).lognormvariate(-4, 1) for n in range(5000)]
    buckets = Latencies()
    for value in values:
        buckets.add(value)
    exact, rough = weighted((value, 1.0) for value in values), buckets.distribution()
    assert exact is not None and rough is not None and rough.n == 5000
    for share in ("mean", "p50", "p90", "p95", "p99"):
        assert getattr(rough, share) == pytest.approx(getattr(exact, share), rel=0.006)


def test_objectives_are_read_as_typed() -> None:
    assert parse_objective("ttft=0.5, e2e=2") == Objective(ttft_s=0.5, e2e_s=2.0)
    with pytest.raises(ValueError, match="must be more than 0 s"):
        parse_objective("tpot=0")


def test_old_reports_keep_no_counters_and_the_figures_of_the_run_stay_exact() -> None:
    """Over an hour with a restart: the figures from a time near the begin, and from a recent one,
    are those of all reports; the reports that keep their histograms are few."""
    record, every = ServingRecord(watched=True), ServingRecord(watched=True)
    every._thin_out = lambda: None  # type: ignore[method-assign]
    for second in range(3600):
        count = float(second if second < 2000 else second - 2000)
        report = ServerState(
            float(second),
            {"requests_running": float(second % 7)},
            {"requests": count, "ttft_s_sum": 2 * count, "ttft_s_count": count},
            {"ttft_s": [(1.0, 0.0), (4.0, count)]},
        )
        record.add_state(report)
        every.add_state(report)
    for since in (30.0, 3400.0):
        assert record._gained(since) == every._gained(since)
        assert record.signals(since, {}, {}) == every.signals(since, {}, {})
    gained, _, wall = record._gained(1234.0)
    assert gained["requests"] / wall == pytest.approx(1.0, rel=0.01) and wall < 3599 - 1234 + 61
    assert sum(bool(state.buckets) for state in record.states) < 500 and len(record.states) == 3600
