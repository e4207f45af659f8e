"""The flags of a watched server under a latency objective."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.advice import advise, growth, restart_words
from gpuconsole.model.finding import Signal
from gpuconsole.model.run import Distribution, Run
from gpuconsole.model.serving import WATCHED, parse_latency_bounds

QUEUE = {
    "requests_running": 16.0,
    "requests_waiting": 16.0,
    "itl_s": 0.02,
    "ttft_s": 1.2,
    "queue_s": 1.1,
    "e2e_s": 2.2,
    "sequence_limit": 16.0,
    "kv_cache_usage_ratio": 0.3,
}


def watched(signals: dict[str, float], ttft_p99: float = 2.0) -> Run:
    run = Run("1", "http://server", WATCHED, {}, "cpu", elsewhere=True)
    run.signals = {f"server.{name}": Signal(value, "", "the page") for name, value in signals.items()}
    run.summary.ttft_s = Distribution(1.2, 0.1, 1000, 1.1, p99=ttft_p99)
    run.summary.itl_s = Distribution(0.02, 0.001, 1000, 0.02, p99=0.03)
    return run


def test_a_queue_behind_the_limit_is_cured_by_more_sequences_under_a_bound_on_the_first_token() -> None:
    advised = advise(watched(QUEUE), parse_latency_bounds("ttft_p99=0.5"))
    best = advised.advice[0]
    ((_, present, low, high),) = best.bounds
    assert (best.changes, best.meets) == ({"max_num_seqs": 32}, "yes") and present == 2.0 and low < high <= 0.5
    assert best.code == "vllm serve ... --max-num-seqs 32"
    assert best.tokens is not None and best.tokens[0] == pytest.approx(1.0) and best.tokens[1] == pytest.approx(2.0)


def test_under_a_bound_on_the_time_between_tokens_fewer_sequences_rank_first() -> None:
    course = [(float(n), 0.001 * n) for n in range(4, 40)]
    advised = advise(watched(QUEUE), parse_latency_bounds("itl_p99=0.02"), course)
    assert int(advised.advice[0].changes["max_num_seqs"]) < 16
    assert {entry.meets for entry in advised.advice if int(entry.changes["max_num_seqs"]) > 16} == {"no"}


def test_the_course_of_the_run_tells_how_much_the_time_of_a_token_grows_with_the_batch() -> None:
    assert growth([(float(n % 20 + 4), 0.02) for n in range(40)]) == (0.0, 0.15)
    assert growth([(float(n % 20 + 4), 0.001 * (n % 20 + 4)) for n in range(40)]) == pytest.approx((0.85, 1.0))
    assert growth([(16.0, 0.02)] * 40) == (0.0, 1.0), "nothing varied, so nothing is known"


def test_a_full_cache_holds_no_larger_batch() -> None:
    assert not [
        entry for entry in advise(watched({**QUEUE, "kv_cache_usage_ratio": 0.97}), ()).advice if int(entry.changes["max_num_seqs"]) > 16
    ]


def test_a_server_that_does_not_report_its_limit_gets_no_prediction_and_the_reason() -> None:
    advised = advise(
        watched({name: value for name, value in QUEUE.items() if name != "sequence_limit"}), parse_latency_bounds("ttft_p99=0.5")
    )
    assert advised.lacks == "not reported: the limit of running sequences" and advised.advice == []


def test_an_idle_server_needs_no_flag() -> None:
    assert advise(watched({**QUEUE, "requests_running": 3.0, "requests_waiting": 0.0, "queue_s": 0.0}), ()).advice == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python -m vllm --model m", "python -m vllm --model m --max-num-seqs 64"),
        ("vllm serve m --max-num-seqs 32 --port 1", "vllm serve m --max-num-seqs 64 --port 1"),
        ("vllm serve m --max_num_seqs=32", "vllm serve m --max-num-seqs=64"),
        ("vllm serve m --api-key secret --tokenizer t", "vllm serve m --api-key ... --tokenizer t --max-num-seqs 64"),
        (
            "vllm serve m --hf-token=secret --max-num-batched-tokens 9",
            "vllm serve m --hf-token=... --max-num-batched-tokens 9 --max-num-seqs 64",
        ),
    ],
)
def test_the_command_of_the_restart_is_its_own_with_the_new_value_and_no_key(words: str, expected: str) -> None:
    assert " ".join(restart_words(words.split(), {"max_num_seqs": 64}, "--max-num-seqs")) == expected


@pytest.mark.parametrize("text", ["ttft=0.5", "ttft_p99", "ttft_p99=x", "ttft_p99=0", "tpot_p99=1"])
def test_a_bad_objective_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"ttft|tpot"):
        parse_latency_bounds(text)
