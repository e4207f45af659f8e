"""Which limits can be tried on a server that is watched."""

from __future__ import annotations

from gpuconsole.model.run import Run
from gpuconsole.model.serving import WATCHED, Fact, ServerFacts

LIVE = {"live_limit.max_num_seqs": 32.0, "live_limit.max_num_batched_tokens": 2048.0}


def watched(facts: dict[str, float], engine: str = "vllm") -> Run:
    return Run(
        "1",
        "http://server",
        WATCHED,
        {"max_num_seqs": 32} if facts else {},
        "cpu",
        elsewhere=True,
        facts=facts,
        server=ServerFacts(engine=Fact(engine, "test")),
    )


def test_a_lower_limit_can_be_tried_where_the_server_takes_limits() -> None:
    assert watched(LIVE).why_not({"max_num_seqs": 8}) == "" and watched(LIVE).applies_live(
        {"max_num_seqs": 8}
    )


def test_a_limit_above_that_of_the_start_needs_a_restart() -> None:
    assert (
        watched(LIVE)
        .why_not({"max_num_seqs": 64})
        .endswith("at most the value of its start, 32; restart the server with the new value")
    )


def test_no_limit_at_all_is_no_limit_to_try() -> None:
    assert watched(LIVE).why_not({"max_num_seqs": 0}) == "max_num_seqs: name a limit of 1 or more"


def test_another_setting_of_that_server_needs_a_restart() -> None:
    assert (
        watched(LIVE)
        .why_not({"gpu_memory_utilization": 0.95})
        .endswith("restart the server with the new value")
    )


def test_a_server_that_takes_none_names_the_flag_that_changes_this() -> None:
    assert (
        "--scheduler-cls gpuconsole.workloads.serving.in_vllm.gpuconsole_caps.scheduler"
        in watched({}).why_not({"max_num_seqs": 8})
    )
    assert "--scheduler-cls" not in watched({}).why_not({"dtype": "float16"})
    assert "--scheduler-cls" not in watched({}, "sglang").why_not({"max_num_seqs": 8})
