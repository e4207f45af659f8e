"""Comparisons of runs that other clients measured: what is refused, what is judged, and how often
equal servers are called different."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.gate.clients import BATCHED, CLOSED, sides
from benchmarks.gate.clients import side as side_of
from gpuconsole.experiments.compare import compare
from gpuconsole.experiments.gate import GateError, judge
from tests.fakes.client_results import BEGUN, aiperf_records, guidellm, serve, sglang, vllm


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{changed.name} {changed.before} -> {changed.after}"
        for changed in compare(side_of(before, "a"), side_of(after, "b")).unlike
    ]


SAME = serve(1)


@pytest.mark.parametrize(
    ("after", "differs"),
    [
        (vllm(serve(2)), []),
        (vllm(serve(2), model="Qwen/Qwen3-14B"), ["model Qwen/Qwen3-8B -> Qwen/Qwen3-14B"]),
        (vllm(serve(2), users=16), ["concurrency 8 -> 16"]),
        (vllm(serve(2, count=100)), ["requests 200 -> 100"]),
        (vllm(serve(2), burstiness=0.5), []),  # no burst without a rate
        (
            vllm(serve(2, rate=4.0), rate=4.0),
            [
                "concurrency 8 -> n/a",
                "request_rate 0 -> 4",
                "arrivals n/a -> gamma",
                "burstiness n/a -> 1",
            ],
        ),
        (vllm(serve(2, output=80)), ["output tokens 40.2 -> 80.4"]),
        (vllm(serve(2, prompt=256)), ["prompt tokens 128 -> 254"]),
        (sglang(serve(2)), ["client vllm bench serve -> SGLang bench_serving"]),
    ],
)
def test_what_makes_two_runs_incomparable(after: dict[str, Any], differs: list[str]) -> None:
    before = vllm(SAME)
    assert differing(before, after) == differs
    if differs:
        with pytest.raises(GateError, match="are not comparable: "):
            judge([side_of(before, "a")], [side_of(after, "b")], 0.9)


def test_another_engine_under_the_same_load_is_compared() -> None:
    comparison = compare(side_of(vllm(SAME), "a"), side_of(vllm(serve(2), backend="tgi"), "b"))
    assert not comparison.unlike and [
        (changed.name, changed.after) for changed in comparison.environment
    ] == [("engine", "tgi")]


def test_other_lengths_within_a_few_percent_are_a_doubt_of_their_size() -> None:
    """A slower server that also made longer answers: the difference of the lengths may be the
    cause."""
    base, new = (
        [
            side_of(vllm(serve(seed, output=output), begun=BEGUN + 90 * place), str(place))
            for place, seed in enumerate(seeds)
        ]
        for output, seeds in ((100, (1, 2, 3, 4, 5)), (104, (6, 7, 8, 9, 10)))
    )
    gate = judge(base, new, 0.98)
    assert not compare(base[0], new[0]).unlike
    assert any("output tokens of a request" in doubt for doubt in compare(base[0], new[0]).doubts)
    assert gate.verdict in ("undecided", "no regression")


def test_single_numbers_are_not_judged_and_the_line_says_why() -> None:
    comparison = compare(
        side_of(vllm(SAME, detailed=False), "a"),
        side_of(vllm(serve(2, slower=1.5), detailed=False), "b"),
    )
    verdicts = {metric.metric: metric.verdict for metric in comparison.metrics}
    assert (
        verdicts["workload.tokens_per_s"] == "worse"
        and verdicts["summary.ttft_s p99"] == "not judged"
    )
    assert not any(name.startswith("workload.ttft") for name in verdicts)
    assert (
        "the file has no times of single requests: vllm bench serve writes them with"
        " --save-detailed"
    ) in comparison.cannot_tell


def test_single_requests_give_latencies_an_interval() -> None:
    comparison = compare(side_of(vllm(SAME), "a"), side_of(vllm(serve(2, slower=1.5)), "b"))
    verdicts = {metric.metric: metric.verdict for metric in comparison.metrics}
    assert [
        verdicts[f"workload.{name}"] for name in ("tokens_per_s", "ttft_s", "tpot_s", "e2e_s")
    ] == ["worse"] * 4


def test_a_load_that_is_not_known_decides_nothing() -> None:
    """The single requests of AIPerf alone name neither the load nor the model."""
    base, new = (
        side_of(aiperf_records(serve(seed, slower=slower)), str(seed))
        for seed, slower in ((1, 1.0), (2, 3.0))
    )
    gate = judge([base], [new], 0.97)
    assert gate.verdict == "undecided" and "profile_export_aiperf.json" in gate.why
    assert "the model of a run: the file does not name it" in gate.cannot_tell


def test_the_open_loop_is_judged_by_the_speed_of_answers() -> None:
    """The client sets the throughput: it is the same for a server that answers 1.3 times as
    slowly."""
    load: dict[str, Any] = {"rate": 4.0}
    base, new = sides("vllm", load, 5, 0.01, 1.3, 3)
    gate = judge(base, new, 0.97)
    assert gate.judged == "e2e" and gate.verdict == "regression"
    rates = [
        sum(side.run.summary.tokens_per_s.mean for side in runs if side.run.summary.tokens_per_s)
        for runs in (base, new)
    ]
    assert rates[1] / rates[0] > 0.95  # by the throughput, nothing happened
    same = judge(*sides("vllm", load, 5, 0.01, 1.0, 3), 0.97)
    assert same.verdict != "regression"


def test_one_run_of_an_open_loop_decides_nothing() -> None:
    base, new = sides("vllm", {"rate": 7.0}, 1, 0.0, 3.0, 1)
    gate = judge(base, new, 0.97)
    assert gate.verdict == "undecided" and gate.needed == 3 and "arrivals" in gate.why
    assert {metric.verdict for metric in compare(base[0], new[0]).metrics} == {"not judged"}


def test_an_open_loop_without_e2e_is_refused_with_the_option_that_writes_it() -> None:
    base, new = (
        side_of(vllm(serve(seed, rate=4.0), rate=4.0, detailed=False), str(seed)) for seed in (1, 2)
    )
    with pytest.raises(GateError, match="--percentile-metrics ttft,tpot,itl,e2el"):
        judge([base], [new], 0.97)


def test_a_result_without_a_time_counts_once() -> None:
    with pytest.raises(GateError, match="are the same run"):
        judge([side_of(sglang(SAME), "a")], [side_of(sglang(SAME), "b")], 0.9)


def test_few_requests_are_no_measurement() -> None:
    with pytest.raises(GateError, match="only 10 answered requests: at least 20 make a rate"):
        judge(
            [side_of(vllm(serve(1, count=10)), "a")], [side_of(vllm(serve(2, count=10)), "b")], 0.9
        )


def test_a_rate_of_a_guidellm_sweep_is_compared_with_the_same_rate() -> None:
    before, after = (
        guidellm([serve(seed, rate=rate) for rate in (2.0, 4.0)], rates=[2.0, 4.0])
        for seed in (1, 2)
    )
    assert differing(before, after) == []
    assert differing(before, guidellm([serve(2, rate=2.5)], rates=[2.5])) == [
        "request_rate 2 -> 2.5"
    ]


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("vllm", CLOSED),
        ("vllm", BATCHED),
        ("vllm, percentiles only", CLOSED),
        ("guidellm", CLOSED),
        ("vllm", {"rate": 7.2}),
    ],
)
@pytest.mark.slow
def test_equal_servers_are_called_different_at_most_once_in_40_times(
    name: str, load: dict[str, Any]
) -> None:
    """Both ways, with three runs of each side; `python -m benchmarks.gate.clients` has more rows
    and more trials."""
    found: Counter[str] = Counter()
    for seed in range(40):
        base, new = sides(name, load, 3, 0.02, 1.0, seed)
        found[judge(base, new, 0.97).verdict] += 1
    assert found["regression"] <= 3, found  # of 40: more than 3 has a chance of 1 in 50 at 1 in 40


@pytest.mark.slow
def test_one_run_of_each_side_seldom_calls_equal_servers_different() -> None:
    called: Counter[str] = Counter()
    for seed in range(60):
        (base,), (new,) = sides("vllm", CLOSED, 1, 0.03, 1.0, seed)
        called.update(
            metric.metric
            for metric in compare(base, new).metrics
            if metric.verdict in ("better", "worse")
        )
    assert max(called.values(), default=0) <= 4, called
