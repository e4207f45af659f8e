"""The rules about model servers, each on ten lines of data: what fires, and what looks like it and
does not."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.engine import all_rules, evaluate, wanted_probes
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.run import Run
from gpuconsole.model.serving import Fact, ServerFacts
from tests.diagnosis.cases import check

KNOBS: Knobs = {
    name: knob.default
    for name, knob in CATALOGUE.items()
    if knob.serving and knob.default is not None
} | {"max_num_seqs": 32}
HEALTHY = {
    "client.lateness_s": 0.001,
    "client.cpu_ratio": 0.2,
    "client.request_rate": 0.0,
    "client.shared_prefix_ratio": 0.0,
    "client.ttft_s": 0.02,
    "client.tpot_s": 0.006,
    "client.e2e_s": 0.4,
    "client.prompt_tokens": 64.0,
    "client.output_tokens": 64.0,
    "client.chunk_gap_s": 0.006,
    "client.chunk_gap_p50_s": 0.005,
    "client.chunk_gap_p99_s": 0.02,
    "server.requests_running": 8.0,
    "server.requests_waiting": 0.0,
    "server.requests_per_s": 20.0,
    "server.slots_taken_ratio": 0.0,
    "server.sequence_limit": 32.0,
    "server.still_s": 0.0,
    "server.kv_cache_usage_ratio": 0.1,
    "server.kv_cache_peak_ratio": 0.15,
    "server.preemptions_per_request": 0.0,
    "server.prompt_tokens_per_s": 1280.0,
    "server.generation_tokens_per_s": 1280.0,
    "server.queue_s": 0.001,
    "server.prefill_s": 0.01,
    "server.decode_s": 0.38,
    "server.e2e_s": 0.391,
    "server.weight_bytes": 1.3e7,
    "server.kv_bytes_per_token": 8192.0,
    "server.prefix_hit_ratio": 0.0,
    "server.peak_bytes_per_s": 2e10,
    "server.itl_s": 0.006,
    "server.frontend_cpu_ratio": 0.2,
    "is_gpu": 0.0,
    "mfu_ratio": 0.1,
    "mbu_ratio": 0.2,
    "probe.prefix_cut_gain": 1.0,
}


def case(signals: dict[str, float] | None = None, knobs: Knobs | None = None) -> Case:
    found = {
        name: Signal(value, "", "test") for name, value in {**HEALTHY, **(signals or {})}.items()
    }
    return Case({**KNOBS, **(knobs or {})}, found, serves=True)


FIRES: list[tuple[str, dict[str, float], Knobs, Knobs]] = [
    ("serve.client_bound", {"client.cpu_ratio": 0.97}, {}, {}),
    ("serve.client_bound", {"client.lateness_s": 0.03}, {}, {}),
    ("serve.client_bound", {"client.runq_ratio": 0.38, "client.lateness_s": 0.003}, {}, {}),
    (
        "serve.sequence_cap",
        {
            "server.slots_taken_ratio": 0.68,
            "server.sequence_limit": 8.0,
            "server.requests_waiting": 24.0,
            "server.requests_running": 8.0,
            "server.queue_s": 0.8,
            "server.e2e_s": 1.2,
        },
        {"max_num_seqs": 8},
        {"max_num_seqs": 32},
    ),
    (
        "serve.kv_bound",
        {
            "server.preemptions_per_request": 0.8,
            "server.kv_cache_peak_ratio": 1.0,
            "server.prompt_tokens_per_s": 2560.0,
        },
        {"num_gpu_blocks_override": 100},
        {"num_gpu_blocks_override": 0},
    ),
    (
        "serve.kv_bound",
        {"server.preemptions_per_request": 0.05, "server.kv_cache_peak_ratio": 0.99},
        {"server": "vllm"},
        {"gpu_memory_utilization": 0.95},
    ),
    (
        "serve.over_capacity",
        {
            "client.request_rate": 60.0,
            "server.queue_s": 5.0,
            "server.e2e_s": 5.5,
            "server.requests_waiting": 200.0,
        },
        {"request_rate": 60.0},
        {"request_rate": 17.0},
    ),
    (
        "serve.prefill_bound",
        {"server.prefill_s": 0.15, "server.decode_s": 0.05, "client.prompt_tokens": 1024.0},
        {"prompt_tokens": 1024},
        {"prompt_tokens": 512},
    ),
    (
        "serve.prefill_stalls_decode",
        {
            "client.prompt_tokens": 2048.0,
            "client.chunk_gap_s": 0.02,
            "client.chunk_gap_p99_s": 0.3,
            "server.requests_running": 4.0,
        },
        {},
        {"max_num_batched_tokens": 512},
    ),
    (
        "serve.batch_too_small",
        {
            "server.weight_bytes": 1.7e8,
            "server.requests_running": 1.0,
            "probe.concurrency_gain": 2.1,
            "probe.concurrency_factor": 4.0,
        },
        {"concurrency": 2},
        {"concurrency": 8},
    ),
    (
        "serve.decode_bandwidth_bound",
        {
            "server.weight_bytes": 1.7e8,
            "server.requests_running": 1.0,
            "client.chunk_gap_p50_s": 0.013,
        },
        {"concurrency": 1},
        {"quantization": "int8"},
    ),
    (
        "serve.prefix_reuse_missed",
        {"client.shared_prefix_ratio": 0.8, "probe.prefix_cut_gain": 1.8},
        {"enable_prefix_caching": False},
        {"enable_prefix_caching": True},
    ),
    (
        "serve.token_budget",
        {
            "client.prompt_tokens": 2048.0,
            "server.prefill_s": 0.5,
            "server.decode_s": 0.3,
            "client.chunk_gap_p99_s": 0.01,
        },
        {"max_num_batched_tokens": 128},
        {"max_num_batched_tokens": 512},
    ),
    (
        "serve.frontend_cpu",
        {"server.frontend_cpu_ratio": 0.95, "client.tpot_s": 0.012},
        {"server": "vllm"},
        {"api_server_count": 2},
    ),
    (
        "serve.long_context_cliff",
        {"client.prompt_tokens": 2048.0},
        {"prompt_tokens": 2048},
        {"prompt_tokens": 1040},
    ),
]


SPLIT = {
    "client.prompt_tokens": 2048.0,
    "server.prefill_s": 0.5,
    "server.decode_s": 0.3,
    "client.chunk_gap_p99_s": 0.01,
}


@pytest.mark.parametrize(
    ("rule", "signals", "knobs", "changes"), FIRES, ids=[row[0] for row in FIRES]
)
def test_it_fires_and_suggests(
    rule: str, signals: dict[str, float], knobs: Knobs, changes: Knobs
) -> None:
    found: Finding = check(rule, case(signals, knobs))
    assert (
        found.state == "fires"
        and 0 < found.recoverable_ratio < 1
        and found.summary
        and found.evidence
    )
    assert (found.suggestions[0].changes if found.suggestions else {}) == changes


@pytest.mark.parametrize(
    ("rule", "signals", "knobs"),
    [
        (
            "serve.sequence_cap",
            {
                "server.slots_taken_ratio": 1.0,
                "server.requests_waiting": 9.0,
                "server.kv_cache_usage_ratio": 0.97,
            },
            {},
        ),
        (
            "serve.sequence_cap",
            {
                "server.slots_taken_ratio": 1.0,
                "server.requests_waiting": 9.0,
                "client.request_rate": 60.0,
            },
            {},
        ),
        ("serve.sequence_cap", {"server.slots_taken_ratio": 1.0}, {}),
        (
            "serve.sequence_cap",
            {"server.slots_taken_ratio": 0.4, "server.requests_waiting": 9.0},
            {},
        ),
        ("serve.kv_bound", {"server.kv_cache_peak_ratio": 1.0}, {}),
        ("serve.over_capacity", {"client.request_rate": 10.0}, {"request_rate": 10.0}),
        (
            "serve.over_capacity",
            {"server.queue_s": 5.0, "server.e2e_s": 5.5, "server.requests_waiting": 50.0},
            {},
        ),
        ("serve.prefill_stalls_decode", {"client.chunk_gap_p99_s": 0.3}, {}),
        (
            "serve.prefill_stalls_decode",
            {
                "client.chunk_gap_p99_s": 0.3,
                "client.prompt_tokens": 4096.0,
                "server.requests_running": 1.0,
            },
            {},
        ),
        (
            "serve.prefix_reuse_missed",
            {"client.shared_prefix_ratio": 0.8, "server.prefix_hit_ratio": 0.75},
            {},
        ),
        (
            "serve.prefix_reuse_missed",
            {"server.prefix_hit_ratio": 0.0},
            {"enable_prefix_caching": False},
        ),
        (
            "serve.prefix_reuse_missed",
            {"client.shared_prefix_ratio": 0.8},
            {"enable_prefix_caching": False},
        ),
        ("serve.token_budget", {**SPLIT, "mfu_ratio": 0.5}, {"max_num_batched_tokens": 128}),
        (
            "serve.token_budget",
            {**SPLIT, "client.chunk_gap_p99_s": 0.05},
            {"max_num_batched_tokens": 128},
        ),
        (
            "serve.token_budget",
            {**SPLIT, "server.decode_s": 50.0},
            {"max_num_batched_tokens": 128},
        ),
        ("serve.token_budget", SPLIT, {"max_num_batched_tokens": 2048}),
        ("serve.frontend_cpu", {"server.frontend_cpu_ratio": 0.75}, {}),
        ("serve.frontend_cpu", {"client.tpot_s": 0.012}, {}),
        ("serve.at_limit_healthy", {"mbu_ratio": 0.7, "server.queue_s": 0.3}, {}),
        ("serve.at_limit_healthy", {"mbu_ratio": 0.5, "mfu_ratio": 0.4}, {}),
        (
            "serve.batch_too_small",
            {
                "server.weight_bytes": 1.7e8,
                "probe.concurrency_gain": 1.05,
                "probe.concurrency_factor": 4.0,
            },
            {},
        ),
        (
            "serve.batch_too_small",
            {"server.weight_bytes": 1.7e8, "server.requests_running": 1.0},
            {"concurrency": 1},
        ),
        (
            "serve.decode_bandwidth_bound",
            {
                "server.weight_bytes": 1.7e8,
                "server.requests_running": 1.0,
                "client.chunk_gap_p50_s": 0.05,
            },
            {},
        ),
        (
            "serve.decode_bandwidth_bound",
            {
                "server.weight_bytes": 1.7e8,
                "server.requests_running": 1.0,
                "client.chunk_gap_p50_s": 0.013,
            },
            {"quantization": "int8"},
        ),
        ("serve.long_context_cliff", {"server.requests_running": 100.0}, {}),
    ],
    ids=str,
)
def test_what_only_looks_like_it_is_clear(
    rule: str, signals: dict[str, float], knobs: Knobs
) -> None:
    assert check(rule, case(signals, knobs)).state == "clear"


def test_a_healthy_server_has_no_finding_and_no_doubt() -> None:
    findings = evaluate(case())
    assert {finding.rule for finding in findings if finding.state == "fires"} == {
        "serve.underloaded_healthy"
    }
    assert {finding.state for finding in findings[1:]} == {"clear"}


def test_without_the_servers_side_only_the_client_can_tell() -> None:
    """Such a server has no /metrics: nothing may fire on a guess."""
    known = {
        name: signal
        for name, signal in case({"client.chunk_gap_p99_s": 0.5}).signals.items()
        if name.startswith("client.")
    }
    findings = {
        finding.rule: finding.state for finding in evaluate(Case(KNOBS, known, serves=True))
    }
    assert "fires" not in findings.values() and findings["serve.client_bound"] == "clear"


def test_rules_about_training_and_about_serving_keep_apart() -> None:
    assert {rule.id for rule in all_rules() if rule.subject in ("serving", "load")} == {
        rule.id for rule in all_rules() if rule.id.startswith("serve.")
    }


@pytest.mark.parametrize(("dtype", "left"), [("float32", "25 %"), ("bfloat16", "50 %")])
def test_int8_of_the_embedded_server_keeps_a_quarter_of_fp32_and_half_of_bf16(
    dtype: str, left: str
) -> None:
    reading = {
        "server.weight_bytes": 1.7e8,
        "server.requests_running": 1.0,
        "client.chunk_gap_p50_s": 0.013,
    }
    on_gpu = Case(
        {**KNOBS, "concurrency": 1, "dtype": dtype},
        case(reading | {"is_gpu": 1.0}).signals,
        serves=True,
    )
    found = check("serve.decode_bandwidth_bound", on_gpu)
    assert found.state == "fires" and found.suggestions[0].changes == {"quantization": "int8"}
    assert found.suggestions[0].why.startswith(
        f"quantization none -> int8: {left} of the bytes per weight"
    )


def test_a_server_behind_a_starved_client_is_not_called_healthy() -> None:
    roof = {"mbu_ratio": 0.7, "client.runq_ratio": 0.38}
    found = {finding.rule: finding for finding in evaluate(case(roof))}
    assert found["serve.client_bound"].state == "fires"
    assert "waits for a CPU 38 % of the time" in found["serve.client_bound"].summary
    assert found["serve.at_limit_healthy"].state == "clear"


def test_at_the_roof_with_nobody_waiting_the_advice_is_to_stop() -> None:
    found = check("serve.at_limit_healthy", case({"mbu_ratio": 0.7}))
    assert found.state == "fires" and found.recoverable_ratio == 0.0 and not found.suggestions


def test_what_a_cache_would_give_is_asked_for_once_it_is_missed() -> None:
    signals = {
        name: signal
        for name, signal in case({"client.shared_prefix_ratio": 0.8}).signals.items()
        if not name.startswith("probe.")
    }
    found = check(
        "serve.prefix_reuse_missed",
        Case({**KNOBS, "enable_prefix_caching": False}, signals, serves=True),
    )
    assert found.state == "fires" and found.suggestions[0].predicted_speedup is None
    assert wanted_probes([found]) == ["prefix_reuse"]


def test_of_a_server_that_tells_no_hits_the_prompts_with_beginnings_of_their_own_decide() -> None:
    signals = {**HEALTHY, "client.shared_prefix_ratio": 0.8, "probe.prefix_cut_gain": 2.0}
    del signals["server.prefix_hit_ratio"]
    told = {name: Signal(value, "", "test") for name, value in signals.items()}
    for salt, state in ((1.02, "fires"), (1.9, "clear")):
        found = check(
            "serve.prefix_reuse_missed",
            Case(KNOBS, {**told, "probe.prefix_salt_ratio": Signal(salt, "x", "test")}, True),
        )
        assert found.state == state


@pytest.mark.parametrize("output", [1.0, 16.0])
def test_a_prefix_that_is_reused_is_attended_to_by_every_token(output: float) -> None:
    """A request takes 50 ms, 25 without what it shares: 0.8 of 512 tokens of 8 kB each, read at 10
    GB/s for every token that is generated."""
    signals = {
        "client.shared_prefix_ratio": 0.8,
        "probe.prefix_cut_gain": 2.0,
        "server.requests_per_s": 20.0,
        "client.prompt_tokens": 512.0,
        "client.output_tokens": output,
        "server.kv_bytes_per_token": 8000.0,
        "server.peak_bytes_per_s": 1e10,
    }
    found = check("serve.prefix_reuse_missed", case(signals, {"enable_prefix_caching": False}))
    predicted = found.suggestions[0].predicted_speedup
    assert predicted is not None
    reading_s = 0.8 * 512 * output * 8000 / 1e10
    assert predicted.high == pytest.approx(0.05 / (0.025 + reading_s) * 1.06, rel=1e-6)
    assert predicted.low == pytest.approx(max(1.0, 0.05 / (0.025 + 3 * reading_s) * 0.94), rel=1e-6)


def test_a_prefix_that_costs_as_much_to_attend_to_as_to_compute_is_no_finding() -> None:
    signals = {
        "client.shared_prefix_ratio": 0.8,
        "probe.prefix_cut_gain": 2.0,
        "server.requests_per_s": 20.0,
        "client.output_tokens": 64.0,
    }
    more = {
        "client.prompt_tokens": 512.0,
        "server.kv_bytes_per_token": 8000.0,
        "server.peak_bytes_per_s": 1e10,
    }
    assert (
        check(
            "serve.prefix_reuse_missed", case({**signals, **more}, {"enable_prefix_caching": False})
        ).state
        == "clear"
    )


@pytest.mark.parametrize(
    "rule",
    ["serve.decode_bandwidth_bound", "serve.prefill_stalls_decode", "serve.token_budget"],
)
def test_a_median_gap_of_zero_is_no_measurement(rule: str) -> None:
    """Chunks that arrive in one read all get the same time, so the gaps between them are 0."""
    signals = {
        "client.chunk_gap_p50_s": 0.0,
        "client.prompt_tokens": 2048.0,
        "server.requests_running": 4.0,
        "server.weight_bytes": 1.7e11,
        "server.prefill_s": 0.5,
    }
    found = {
        finding.rule: finding
        for finding in evaluate(case(signals, {"max_num_batched_tokens": 512}))
    }[rule]
    assert (found.state, found.summary) == (
        "cant_tell",
        "the median gap between chunks is 0 s: several chunks arrive at once",
    )


PRESSED = {
    "server.preemptions_per_request": 0.8,
    "server.kv_cache_peak_ratio": 1.0,
    "server.requests_waiting": 6.0,
}


def elsewhere(server: ServerFacts, signals: dict[str, float]) -> Case:
    """The case of a server that was not started here. The knobs of the scenario are those of
    another server."""
    run = Run(
        "1",
        "kv-pressure",
        "inference.serving",
        {**KNOBS, "num_gpu_blocks_override": 100, "d_model": 256},
        "cpu",
    )
    run.server, run.elsewhere = server, True
    return Case.of(run, case(signals).signals)


def reported(**values: float | str) -> ServerFacts:
    return ServerFacts(**{name: Fact(value, "test") for name, value in values.items()})


def test_suggestions_for_a_server_elsewhere_start_from_what_it_reports() -> None:
    found = check(
        "serve.kv_bound",
        elsewhere(reported(engine="vllm", num_blocks_override=18.0), PRESSED),
    )
    first, second = found.suggestions
    assert first.changes == {"num_gpu_blocks_override": 0} and first.why.startswith(
        "num_gpu_blocks_override 18 -> 0:"
    )
    assert second.why.startswith("max_num_seqs 6:"), "the server does not report its present value"


@pytest.mark.parametrize(
    ("engine", "code"),
    [
        ("vllm", "vllm serve ... --max-num-seqs 6"),
        ("sglang", "python -m sglang.launch_server ... --max-running-requests 6"),
        ("llama.cpp", "llama-server ... --parallel 6"),
    ],
)
def test_the_flag_is_that_of_the_engine(engine: str, code: str) -> None:
    found = check("serve.kv_bound", elsewhere(reported(engine=engine), PRESSED))
    assert found.suggestions[-1].code == code
    assert not any("num_gpu_blocks_override" in one.changes for one in found.suggestions)


@pytest.mark.parametrize(("ended", "state"), [(60.0, "clear"), (600.0, "fires")])
def test_one_failure_is_chance_and_ten_are_not(ended: float, state: str) -> None:
    signals = {"server.failed_ratio": 1 / 60, "server.requests_ended": ended}
    assert check("serve.requests_fail", case(signals)).state == state


def test_tgi_gets_no_flag_that_does_not_exist_on_a_gpu() -> None:
    """Its --max-batch-size is for devices that need a fixed shape, and 0.95 of all memory may not
    start."""
    assert check("serve.kv_bound", elsewhere(reported(engine="tgi"), PRESSED)).suggestions == ()


def test_a_limit_that_the_server_does_not_report_leaves_its_rules_without_a_conclusion() -> None:
    found = {one.rule: one for one in evaluate(elsewhere(reported(engine="vllm"), {}))}
    assert (found["serve.token_budget"].state, found["serve.token_budget"].missing) == (
        "cant_tell",
        ("server.token_limit",),
    )
    assert not any("failed" in one.summary for one in found.values())


def test_no_knob_of_the_embedded_model_is_a_setting_of_a_server_elsewhere() -> None:
    settings = elsewhere(
        reported(engine="vllm", max_num_seqs=64.0, enable_prefix_caching=1.0), {}
    ).knobs
    assert {
        name: settings.get(name)
        for name in ("d_model", "num_gpu_blocks_override", "max_num_seqs", "server")
    } == {
        "d_model": None,
        "num_gpu_blocks_override": None,
        "max_num_seqs": 64,
        "server": "vllm",
    }
    assert (
        settings["enable_prefix_caching"] is True
        and settings["concurrency"] == KNOBS["concurrency"]
    )
