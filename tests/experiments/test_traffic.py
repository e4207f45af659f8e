"""The statistics of a trial under the traffic of other clients: on servers in a loop, steady and
bursty, open and closed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuconsole.experiments.statistics import BASELINE, CHANGED
from gpuconsole.experiments.traffic import TrafficPair, block_of, judge
from gpuconsole.model.experiments import Trial
from gpuconsole.model.serving import parse_latency_bounds
from gpuconsole.report.experiments import trial_report, verdict
from gpuconsole.report.parts import printed
from gpuconsole.wire.events import ServerState
from tests.fakes.served_traffic import trial
from tests.fakes.server_pages import SECONDS

TRAFFIC = {
    "steady": {"rate": 6.0},
    "bursty": {"rate": 5.0, "bursts": 1.9},
    "closed": {"users": 16},
}
"""Load below what the server can do, bursts of three times the quiet rate, and clients that wait
for their answers."""


@pytest.mark.slow
@pytest.mark.parametrize("traffic", TRAFFIC)
def test_the_same_limit_on_both_sides_is_no_win_and_no_loss(traffic: str) -> None:
    verdicts = [trial(8, 8, seed, **TRAFFIC[traffic]).verdict for seed in range(20)]
    assert sum(verdict in ("win", "worse") for verdict in verdicts) == 0, verdicts


THRASHES = {"fits": 8, "each_s": 0.008, "base_s": 0.01}
"""More than eight running requests slow each other down, as where a cache overflows: eight at a
time are faster than 32."""


@pytest.mark.slow
@pytest.mark.parametrize("traffic", [{"rate": 14.0}, {"rate": 11.0, "bursts": 1.5}])
def test_a_limit_that_helps_is_proven_under_each_traffic(traffic: dict[str, Any]) -> None:
    verdicts = [
        (judged := trial(32, 8, seed, **THRASHES, **traffic)).verdict or judged.reason
        for seed in range(5)
    ]
    assert verdicts.count("win") >= 4, verdicts


@pytest.mark.slow
def test_clients_that_wait_get_more_tokens_and_later_first_tokens_and_that_is_a_trade() -> None:
    judged = trial(32, 8, 1, **THRASHES, users=32)
    assert judged.effects["tokens_per_s"].low > 1.02
    assert judged.verdict == "undecided" and judged.reason.startswith(
        "a trade: time of a token, waiting included "
    )


@pytest.mark.slow
@pytest.mark.parametrize("traffic", [{"users": 16}, {"rate": 8.0}])
def test_a_limit_that_harms_is_worse(traffic: dict[str, Any]) -> None:
    """The time between tokens is better with fewer at a time; the time of a token with its wait is
    not."""
    judged = trial(32, 2, 1, **traffic)
    assert (
        judged.verdict == "worse"
        and judged.effects["time_per_token_s"].high < 1 < judged.effects["itl_s"].estimate
    )


def test_a_load_below_the_limit_is_undecided_with_the_reason() -> None:
    judged = trial(64, 32, 1, users=4)
    assert judged.verdict == "undecided"
    assert judged.reason == (
        "the load is too small for the limit to matter: at most 4 requests were in the server,"
        " below the limit of 32 (--max-num-seqs)"
    )


def state(t: float, running: float, made: float, ended: float) -> ServerState:
    totals = {"requests": ended, "generation_tokens": made}
    return ServerState(t, {"requests_running": running, "requests_waiting": 0.0}, totals)


def steady_block(rate: float, inside: float, tokens: float) -> Any:
    return block_of([state(float(t), inside, 100 + tokens * t, 10 + rate * t) for t in range(9)])


def test_arrivals_are_those_that_left_and_the_growth_inside() -> None:
    block = block_of([state(float(t), 2.0 + t, 100.0 * t, 3.0 * t) for t in range(6)])
    assert block is not None and block.arrivals == 15 + 5 and block.inside == pytest.approx(4.5)


def test_more_tokens_because_more_came_is_no_gain() -> None:
    """The load with the change is two and a half times as high, in requests that come and in
    requests inside."""
    blocks = {BASELINE: steady_block(4, 6, 100), CHANGED: steady_block(10, 15, 250)}
    judged = judge([TrafficPair(BASELINE, blocks)] * 12, {"max_num_seqs": 8}, {"max_num_seqs": 16})
    assert judged.verdict is None and judged.reason.startswith("the load differed: 0 of 12 pairs")


def test_a_restart_within_a_block_is_said() -> None:
    states = [state(float(t), 2.0, 100.0 * t, float(t)) for t in range(6)]
    with pytest.raises(ValueError, match="the server restarted during the trial"):
        block_of([*states, state(6.0, 2.0, 10.0, 0.0)])


def test_a_gain_that_costs_the_first_token_is_a_trade() -> None:
    def block(inside: float, ttft: float) -> Any:
        states = [
            ServerState(
                float(t),
                {"requests_running": inside, "requests_waiting": 0.0},
                {
                    "requests": 4.0 * t,
                    "generation_tokens": 100.0 * t,
                    "ttft_s_sum": 4.0 * t * ttft,
                    "ttft_s_count": 4.0 * t,
                },
            )
            for t in range(9)
        ]
        return block_of(states)

    pairs = [
        TrafficPair(BASELINE, {BASELINE: block(10 + n % 2 / 50, 0.1), CHANGED: block(6, 0.3)})
        for n in range(12)
    ]
    judged = judge(pairs, {"max_num_seqs": 4}, {"max_num_seqs": 10})
    assert (
        judged.verdict == "undecided"
        and judged.reason.startswith("a trade: time of a token")
        and "TTFT 0.33x as good" in judged.reason
    )


# --- with an objective ----------------------------------------------------------------------------


def answering(inside: float, *ttft: float, rate: int = 10) -> Any:
    """A block of eight seconds with so many requests inside, and `rate` answers a second, whose
    TTFT are spread evenly over `ttft`."""

    def reading(t: int) -> ServerState:
        count = float(rate * t)
        up_to = [
            (bound, count * sum(value <= bound for value in ttft) / len(ttft)) for bound in SECONDS
        ]
        totals = {
            "ttft_s_sum": count * sum(ttft) / len(ttft),
            "ttft_s_count": count,
            "requests": count,
            "generation_tokens": 100.0 * t,
        }
        return ServerState(
            float(t),
            {"requests_running": inside, "requests_waiting": 0.0},
            totals,
            {"ttft_s": up_to},
        )

    return block_of([reading(t) for t in range(9)])


QUICK, TAIL = (0.2,) * 20, (0.2,) * 19 + (0.8,)
"""p99 of 0.1 to 0.25 s, and of 0.75 to 1 s."""


def judged_under(slo: str, before: Any, after: Any, number: int = 12) -> Any:
    pairs = [TrafficPair(BASELINE, {BASELINE: before, CHANGED: after})] * number
    return judge(
        pairs, {"max_num_seqs": 4}, {"max_num_seqs": 6}, objective=parse_latency_bounds(slo)
    )


def test_a_gain_that_breaks_the_objective_is_worse_and_says_by_how_much() -> None:
    before, after = answering(10, *QUICK), answering(6, *TAIL)
    assert judged_under("e2e_p99=9", before, after).effects["time_per_token_s"].low > 1.5
    judged = judged_under("ttft_p99=0.5", before, after)
    assert judged.verdict == "worse"
    assert judged.reason == (
        "breaks the objective: ttft_p99 at most 500 ms: 0.75 to 1.00 s with the change (missed),"
        " 100 to 250 ms without it (kept)"
    )


def test_a_change_that_begins_to_keep_the_objective_wins() -> None:
    judged = judged_under("ttft_p99=0.5", answering(8, *TAIL), answering(8, *QUICK))
    assert judged.verdict == "win" and judged.reason.startswith(
        "meets the objective: ttft_p99 at most 500 ms: 100 to 250 ms with the change (kept)"
    )
    costs = judged_under("ttft_p99=0.5", answering(8, *TAIL), answering(16, *QUICK))
    assert costs.verdict == "win" and costs.reason.endswith(
        "the price: time of a token, waiting included 0.50x as good"
    )


def test_a_gain_that_keeps_the_objective_wins_and_one_that_misses_it_as_before_does_not() -> None:
    assert (
        judged_under("ttft_p99=0.5", answering(10, *QUICK), answering(6, *QUICK)).verdict == "win"
    )
    missed = judged_under("ttft_p99=0.5", answering(10, *TAIL), answering(6, *TAIL))
    assert (
        missed.verdict == "undecided"
        and "1.67x as good, but the objective is missed: ttft_p99" in missed.reason
    )


@pytest.mark.parametrize(
    ("slo", "ttft", "rate"),
    [
        ("ttft_p50=0.22", QUICK, 10),  # within the bucket of 0.1 to 0.25 s
        ("ttft_p99=0.5", QUICK, 2),  # 192 requests: p99 needs 300
        ("e2e_p99=9", QUICK, 10),  # not reported
        ("ttft_p90=1000,ttft_p99=0.2", QUICK, 10),  # one of two
    ],
)
def test_an_objective_that_the_histogram_cannot_prove_leaves_the_trial_undecided(
    slo: str, ttft: tuple[float, ...], rate: int
) -> None:
    judged = judged_under(slo, answering(10, *ttft, rate=rate), answering(6, *ttft, rate=rate))
    assert (
        judged.verdict is None
        and judged.reason.startswith("the objective is not proven: ")
        and "1.67x as good" in judged.reason
    )


@pytest.mark.slow
@pytest.mark.parametrize("slo", ["ttft_p50=0.5", "ttft_p99=1", "ttft_mean=0.3"])
def test_the_same_limit_on_both_sides_neither_meets_nor_breaks_an_objective(slo: str) -> None:
    """The limits are near the figure."""
    judged = [
        trial(3, 3, seed, parse_latency_bounds(slo), rate=4.0, base_s=0.012) for seed in range(20)
    ]
    assert [
        found.reason
        for found in judged
        if found.verdict in ("win", "worse") and "objective" in found.reason
    ] == []


def test_a_mean_is_known_without_buckets() -> None:
    judged = judged_under("ttft_mean=0.22", answering(10, *QUICK), answering(6, *TAIL))
    assert (
        judged.verdict == "worse"
        and "ttft_mean at most 220 ms: 230 ms with the change (missed), 200 ms without it (kept)"
        in judged.reason
    )


def test_the_verdict_of_a_trial_with_an_objective_names_it() -> None:
    judged = judged_under("ttft_p99=0.5", answering(10, *QUICK), answering(6, *TAIL))
    trial = Trial(
        "1",
        "1",
        {"max_num_seqs": 4},
        "done",
        verdict=judged.verdict,
        reason=judged.reason,
        method="live traffic",
        objective=judged.objective,
    )
    assert verdict(trial).startswith("worse; breaks the objective: ttft_p99")
    assert printed(trial_report(trial, None)).count("ttft_p99") == 1, "once, in the verdict"
    assert "objective ttft_p99 at most 500 ms" in printed(
        trial_report(msgspec.structs.replace(trial, reason=""), None)
    )
