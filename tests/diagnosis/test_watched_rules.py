"""Labelled states of servers that are only watched: from the pages that each engine would show,
through reading, session and rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuconsole.diagnosis.engine import all_rules, evaluate
from gpuconsole.diagnosis.rule import Case
from gpuconsole.diagnosis.signals.run import run_signals
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.run import Step, Summary
from gpuconsole.model.serving import CLIENT_WAIT, WATCHED, Fact, ServerFacts
from gpuconsole.session.run import RunRecord
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import ProbeDone, RunOpened, ServerKnown, Started, Steps
from gpuconsole.workloads.serving.scraping import engines_on, read_families, server_state
from tests.fakes.server_pages import CAPPED, VLLM_LABELS, Load, busier, page, vllm

READINGS = 20
Loads = Callable[[int], Load]


def watched(engine: str, load: Load | Loads, facts: dict[str, float] | None = None) -> RunRecord:
    """The record of a run that has read the page of `engine` once a second. `facts`: what the
    server says of itself elsewhere."""
    of_second: Loads = load if callable(load) else lambda second: load
    return read(lambda second: page(engine, of_second(second), second), facts)


def read(text: Callable[[int], str], facts: dict[str, float] | None = None) -> RunRecord:
    """The record of a run that has read the page `text` once a second."""
    record = RunRecord(RunOpened(0.0, "1", "http://server", WATCHED, {}, "cpu", elsewhere=True), "")
    known = {name: Fact(value, "/facts") for name, value in (facts or {}).items()}
    engine = Fact(engines_on(read_families(text(1)))[0].name, "the metrics page")
    record.apply(ServerKnown(0.0, ServerFacts(engine=engine, **known)))  # type: ignore[arg-type]
    record.apply(Started(0.0, {}, {}))
    for second in range(1, READINGS + 1):
        families = read_families(text(second), buckets=True)
        record.apply(server_state(families, float(second), buckets=True))
        step = Step(second, float(second), 1.0, 10, 500, ())
        record.apply(Steps(float(second), [step], 0.0, 0.0, 0.0, 0.0))
    assert record.steady_t is not None
    return record


def conclusions(record: RunRecord) -> list[Finding]:
    return evaluate(Case.of(record.run, run_signals(record, Summary(), 8, None)))


def firing(record: RunRecord) -> list[str]:
    return [
        finding.rule.removeprefix("serve.")
        for finding in conclusions(record)
        if finding.state == "fires"
    ]


def test_a_page_that_is_read_seldom_gets_its_verdict_after_a_few_readings() -> None:
    """A page that is slow to read is read every 4 s: the pace of the readings had to be steady
    before anything was said, and a watch of 30 s ended without a conclusion."""
    record, t = RunRecord(RunOpened(0.0, "1", "http://server", WATCHED, {}, "cpu"), ""), 0.0
    record.apply(ServerKnown(0.0, ServerFacts(engine=Fact("vllm", "the metrics page"))))
    record.apply(Started(0.0, {}, {}))
    for number, wall_s in enumerate((0.5, 0.5, 0.6, 1.2, 4.1, 4.0)):
        t += wall_s
        record.apply(server_state(read_families(page("vllm", Load(failed=3), t)), t))
        record.apply(Steps(t, [Step(number, t, wall_s, 10, 500, ())], 0.0, 0.0, 0.0, 0.0))
    assert firing(record) == ["requests_fail"]


IDLE = Load(running=0, requests=0, kv=0)
FULL = Load(running=24, waiting=30, kv=0.97, preemptions=3, queue=2.0, requests=10)
STALLED = Load(running=8, prompt=4000, gaps=(0.018,) * 95 + (0.4,) * 5, kv=0.3)
FORTY = Load(running=50, kv=0.75)


def shaky(load: Load, *running: float) -> Loads:
    """`load` with another number of running requests in each second."""
    return lambda second: busier(load, running=running[second % len(running)])


def late(load: Load) -> Loads:
    """`load` on a server whose web server counts the end of an answer after the engine, or before
    the engine."""
    return lambda second: busier(load, late=(3, -1, 2, 1, 3, 2, -2)[second % 7])


STATES: list[tuple[str, str, Load | Loads, dict[str, float], set[str]]] = [
    ("few requests", "vllm", Load(), {}, {"underloaded_healthy"}),
    ("no requests: nobody was served", "vllm", IDLE, {}, set()),
    ("few requests, SGLang", "sglang", Load(), {}, {"underloaded_healthy"}),
    ("few requests, old vLLM", "vllm 0.10", Load(), {}, {"underloaded_healthy"}),
    ("few requests, TensorRT-LLM", "tensorrt-llm", Load(), {}, {"underloaded_healthy"}),
    ("few requests, Triton", "triton", Load(), {}, {"underloaded_healthy"}),
    ("few requests, LMDeploy", "lmdeploy", Load(), {}, {"underloaded_healthy"}),
    ("few requests, Ray", "ray-serve", Load(), {}, {"underloaded_healthy"}),
    ("well used: most of the cache, nothing waits", "vllm", FORTY, {}, {"at_limit_healthy"}),
    (
        "well used: most of the slots, nothing waits",
        "tensorrt-llm",
        busier(FORTY, kv=0.3),
        {},
        {"at_limit_healthy"},
    ),
    (
        "forward passes all the time say nothing",
        "sglang",
        busier(FORTY, kv=0.4, forward=0.95, idle=0.02),
        {},
        {"underloaded_healthy"},
    ),
    ("sequence cap, inferred", "vllm", CAPPED, {}, {"sequence_cap"}),
    ("sequence cap, known", "vllm", CAPPED, {"max_num_seqs": 10}, {"sequence_cap"}),
    ("sequence cap, SGLang", "sglang", CAPPED, {"max_num_seqs": 10}, {"sequence_cap"}),
    ("sequence cap, llama.cpp slots", "llama.cpp", CAPPED, {"max_num_seqs": 10}, {"sequence_cap"}),
    ("sequence cap, TensorRT-LLM", "tensorrt-llm", busier(CAPPED, limit=10), {}, {"sequence_cap"}),
    ("cache full, preemptions", "vllm", shaky(FULL, 24, 20, 22, 18), {}, {"kv_bound"}),
    (
        "cache full, retractions",
        "sglang",
        shaky(FULL, 24, 20, 22, 18),
        {"max_num_seqs": 256},
        {"kv_bound"},
    ),
    (
        "cache full, no count of preemptions",
        "lmdeploy",
        shaky(FULL, 24, 20, 22, 18),
        {},
        {"kv_bound"},
    ),
    (
        "keys and values from elsewhere",
        "vllm",
        shaky(Load(waiting=6, deferred=6, queue=0.8), 4, 5, 3),
        {},
        {"deferred"},
    ),
    (
        "grammars",
        "sglang",
        shaky(Load(waiting=0, deferred=4, queue=0.5), 4, 5, 3),
        {"max_num_seqs": 256},
        {"deferred"},
    ),
    (
        "slow host",
        "sglang",
        Load(running=40, kv=0.4, idle=0.02, forward=0.4),
        {"max_num_seqs": 256},
        {"host_bound"},
    ),
    ("queue in Ray Serve", "ray-serve", Load(front=20), {}, {"queue_before_engine"}),
    ("queue in the API server", "lmdeploy", Load(front=20), {}, {"queue_before_engine"}),
    ("long prompts stall tokens", "vllm", STALLED, {}, {"prefill_stalls_decode"}),
    (
        "token budget",
        "vllm",
        shaky(
            Load(waiting=20, iteration=1900, prompt=6000, queue=1.0, prefill=3.0, kv=0.5),
            20,
            9,
            16,
            12,
        ),
        {"max_num_batched_tokens": 2048, "max_num_seqs": 256},
        {"token_budget"},
    ),
    (
        "token budget, inferred",
        "vllm",
        shaky(
            Load(waiting=20, iteration=1900, prompt=6000, queue=1.0, prefill=3.0, kv=0.5),
            20,
            9,
            16,
            12,
        ),
        {},
        {"token_budget"},
    ),
    (
        "hangs: two run, no token, no end",
        "vllm",
        Load(running=2, requests=0, kv=0.05),
        {},
        {"stands_still"},
    ),
    (
        "hangs beside a queue and a full cache",
        "vllm",
        Load(running=35, waiting=115, requests=0, kv=0.99),
        {"max_num_seqs": 35},
        {"stands_still"},
    ),
    (
        "SGLang writes its gauges every 30 s while it has nothing to do",
        "sglang",
        Load(running=1, requests=0, kv=0.01),
        {"max_num_seqs": 64},
        set(),
    ),
    ("TGI tells nothing before the end of a request", "tgi", Load(requests=0), {}, set()),
    (
        "most requests fail",
        "vllm",
        Load(requests=1, failed=9),
        {},
        {"requests_fail"},
    ),
    ("clients abort", "sglang", Load(aborted=9), {}, {"requests_fail"}),
    ("clients leave, and vLLM does not count it", "vllm", Load(left=3), {}, {"requests_fail"}),
    (
        "clients leave before a busy server, which counts late",
        "vllm",
        late(Load(running=8, requests=1, left=1)),
        {},
        {"requests_fail"},
    ),
    (
        "a web server counts late",
        "vllm",
        late(Load(running=8, requests=1)),
        {},
        {"underloaded_healthy"},
    ),
    ("a third is refused", "vllm", Load(invalid=3), {}, {"requests_fail"}),
    ("a third is refused, SGLang", "sglang", Load(invalid=3), {}, {"requests_fail"}),
    ("all are refused", "vllm", busier(IDLE, invalid=5), {}, {"requests_fail"}),
    ("one answer in nine is HTTP 500", "vllm", Load(broken=1), {}, {"requests_fail"}),
    ("clients make a mistake", "vllm", Load(requests=60, invalid=1), {}, {"underloaded_healthy"}),
    (
        "refusals take no slot",
        "vllm",
        Load(running=6, waiting=3, kv=0.03, requests=0, invalid=5),
        {},
        {"requests_fail", "stands_still"},
    ),
    (
        "requests for embeddings",
        "vllm",
        Load(output=0, gaps=(0.02,), prefill=0.05, decode=0.0),
        {},
        {"underloaded_healthy"},
    ),
    (
        "most of what waits has no slot",
        "vllm",
        busier(CAPPED, deferred=2),
        {"max_num_seqs": 10},
        {"sequence_cap", "deferred"},
    ),
    ("an engine that may count kept prefixes", "lmdeploy", busier(IDLE, kv=0.3), {}, set()),
    ("people stop an answer", "vllm", Load(requests=40, aborted=1), {}, {"underloaded_healthy"}),
    (
        "a token takes seconds",
        "vllm",
        Load(running=2, requests=1, output=6, gaps=(4.0,), decode=20.0),
        {},
        {"slow_tokens"},
    ),
    (
        "the cache leaks",
        "vllm",
        busier(IDLE, kv=0.98),
        {},
        {"kv_leak"},
    ),
    (
        "one user on SGLang uses little",
        "sglang",
        Load(running=1, kv=0.01, requests=1, forward=0.99, idle=0.0),
        {"max_num_seqs": 64},
        {"underloaded_healthy"},
    ),
    (
        "fewer than four run: many causes",
        "vllm",
        Load(running=1, waiting=3, kv=0.03, requests=2, queue=2.0),
        {},
        set(),
    ),
    (
        "a known limit of two",
        "vllm",
        Load(running=2, waiting=3, kv=0.03, requests=2, queue=2.0),
        {"max_num_seqs": 2},
        {"sequence_cap"},
    ),
    (
        "short answers: many readings are below the limit",
        "vllm",
        shaky(Load(waiting=24, kv=0.02, requests=8, queue=2.0), 16, 14, 16, 13, 15, 16),
        {},
        {"sequence_cap"},
    ),
    (
        "answers longer than the watch: hardly one ends",
        "vllm",
        Load(running=48, waiting=72, kv=0.02, requests=1, output=90, queue=40.0, decode=60.0),
        {},
        {"sequence_cap"},
    ),
    (
        "a batch that decodes is no token budget",
        "vllm",
        Load(running=60, waiting=20, iteration=60, queue=1.0, kv=0.5),
        {},
        {"sequence_cap"},
    ),
]


@pytest.mark.parametrize(
    ("name", "engine", "load", "facts", "expected"), STATES, ids=[state[0] for state in STATES]
)
def test_a_labelled_state_gets_its_verdict(
    name: str, engine: str, load: Load | Loads, facts: dict[str, float], expected: set[str]
) -> None:
    assert set(firing(watched(engine, load, facts))) == expected


BUSY = Load(running=8, kv=0.4, requests=10)
QUEUED = Load(running=64, waiting=110, kv=0.5, queue=9.0)
FULL_TOO = Load(running=64, waiting=5, kv=0.99, preemptions=1, queue=1.0)
ENGINES: list[tuple[str, tuple[Load, ...], tuple[str, ...], set[str]]] = [
    ("two of three have room", (QUEUED, BUSY, BUSY), ("m", "m", "m"), {"imbalance"}),
    ("none has room", (FULL_TOO, busier(FULL_TOO, waiting=0)), ("m", "m"), {"kv_bound"}),
    ("two models", (FULL_TOO, BUSY), ("a", "b"), {"kv_bound"}),
    ("all are alike", (BUSY, BUSY), ("m", "m"), {"underloaded_healthy"}),
]


@pytest.mark.parametrize(
    ("name", "loads", "models", "expected"), ENGINES, ids=[case[0] for case in ENGINES]
)
def test_engines_on_one_page_are_judged_one_by_one(
    name: str, loads: tuple[Load, ...], models: tuple[str, ...], expected: set[str]
) -> None:
    def text(second: int) -> str:
        rows = (
            vllm(load, second, labels=f'engine="{n}",model_name="{model}"')
            for n, (load, model) in enumerate(zip(loads, models, strict=True))
        )
        return "\n".join(row for of_engine in rows for row in of_engine) + "\n"

    assert set(firing(read(text))) == expected


def test_an_engine_that_hangs_is_seen_beside_one_that_works() -> None:
    def text(second: int) -> str:
        hangs = vllm(busier(BUSY, running=20), min(second, 3), labels='engine="1",model_name="m"')
        return "\n".join([*vllm(BUSY, second), *hangs]) + "\n"

    (finding,) = [f for f in conclusions(read(text)) if f.state == "fires"]
    assert finding.rule == "serve.stands_still" and "1 of 2 engines" in finding.summary


def test_clients_that_leave_are_seen_where_the_engine_does_not_count_them() -> None:
    """vLLM 0.32 counted none of 421 requests that a client had closed: they have a first token, and
    neither ended nor run."""

    def text(second: int) -> str:
        return page("vllm", BUSY, second).replace(
            f"vllm:e2e_request_latency_seconds_count{{{VLLM_LABELS}}} {10 * second}",
            f"vllm:e2e_request_latency_seconds_count{{{VLLM_LABELS}}} {7 * second}",
        )

    (finding,) = [f for f in conclusions(read(text)) if f.state == "fires"]
    assert finding.rule == "serve.requests_fail" and finding.title == "Clients abort their requests"


def test_a_server_that_stood_still_is_not_called_healthy_afterwards() -> None:
    assert (
        firing(read(lambda second: page("vllm", BUSY, min(second, 2) + max(0, second - 18)))) == []
    )


def test_one_sum_that_falls_ends_no_reading() -> None:
    """Its count went on: the mean of that second is not known."""
    text = page("vllm", BUSY, 12)
    fallen = "\n".join(
        f"vllm:inter_token_latency_seconds_sum{{{VLLM_LABELS}}} 0.1"
        if row.startswith("vllm:inter_token_latency_seconds_sum")
        else row
        for row in text.splitlines()
    )
    state = SessionState()
    state.apply(RunOpened(0.0, "1", "http://server", WATCHED, {}, "cpu", elsewhere=True))
    for second, shown in (
        (1.0, page("vllm", BUSY, 11)),
        (2.0, fallen),
        (3.0, page("vllm", BUSY, 13)),
    ):
        state.apply(server_state(read_families(shown, buckets=True), second, buckets=True))
    assert state.record is not None and state.record.serving is not None
    assert len(state.record.serving.states) == 3


def test_a_sequence_cap_comes_with_its_evidence_and_the_flag_of_its_engine() -> None:
    for engine, flag in (
        ("vllm", "vllm serve ... --max-num-seqs 128"),
        ("sglang", "python -m sglang.launch_server ... --max-running-requests 128"),
    ):
        (finding,) = [
            f
            for f in conclusions(watched(engine, CAPPED, {"max_num_seqs": 10}))
            if f.state == "fires"
        ]
        assert finding.rule == "serve.sequence_cap" and finding.suggestions[0].code == flag
        assert {"server.requests_waiting", "server.slots_taken_ratio", "server.sequence_limit"} <= {
            entry.signal for entry in finding.evidence
        }
        assert (
            "10 of at most 10 requests run, and 90 wait" in finding.summary
            and "only 19" in finding.summary
        )


def test_an_inferred_limit_says_so() -> None:
    signals = run_signals(watched("vllm", CAPPED), Summary(), 8, None)
    assert signals["server.sequence_top"].value == 10 and "server.sequence_limit" not in signals
    (finding,) = [f for f in conclusions(watched("vllm", CAPPED)) if f.state == "fires"]
    assert finding.confidence == "low" and "inferred" in finding.summary


def test_what_an_engine_does_not_tell_is_named_with_what_turns_it_on() -> None:
    def reasons(engine: str, load: Load) -> dict[str, str]:
        return {
            f.rule: f.summary for f in conclusions(watched(engine, load)) if f.state == "cant_tell"
        }

    tgi, vllm = reasons("tgi", CAPPED), reasons("vllm", Load())
    assert tgi["serve.kv_bound"] == "the use of the KV cache is missing: TGI does not report it"
    assert tgi["serve.prefill_stalls_decode"].endswith(
        "TGI's time per token contains the prefill, so it is not ITL"
    )
    assert vllm["serve.token_budget"].endswith("vLLM has no metric for --max-num-batched-tokens")
    assert "needs" not in " ".join([*tgi.values(), *vllm.values()])


def test_what_nobody_has_read_is_not_called_missing_on_the_page() -> None:
    """Behind a balancer, and before the second reading, each rule said that the page lacks it."""
    record = watched("vllm", Load())
    balanced = run_signals(record, Summary(), 8, None)
    balanced = {name: value for name, value in balanced.items() if name == "server.engines"}
    balanced["server.replicas"] = Signal(2.0, "servers", "a test")
    for signals, words in ((balanced, "several servers"), ({}, "too few readings")):
        for finding in evaluate(Case.of(record.run, signals)):
            if any(name.startswith("server.") for name in finding.missing):
                assert words in (finding.summary or ""), finding


def test_a_wide_bucket_makes_no_stall() -> None:
    """vLLM's first bucket ends at 10 ms: gaps of 1 ms and of 9 ms look the same."""
    assert "prefill_stalls_decode" not in firing(
        watched("vllm", busier(STALLED, gaps=(0.001,) * 90 + (0.024,) * 10))
    )  # type: ignore[arg-type]


def test_a_watched_run_has_no_rules_about_training_or_about_a_load_of_ours() -> None:
    about = {rule.id: rule.subject for rule in all_rules()}
    assert {about[finding.rule] for finding in conclusions(watched("vllm", Load()))} == {"serving"}


def test_an_inferred_token_budget_says_so() -> None:
    load = Load(waiting=20, iteration=1900, prompt=6000, queue=1.0, prefill=3.0, kv=0.5)
    budget = run_signals(watched("vllm", shaky(load, 20, 9, 16, 12)), Summary(), 8, None)[
        "server.token_limit"
    ]
    assert (
        budget.value == 2048
        and budget.source
        == "inferred: 100 % of the iterations have 1024 to 2048 tokens, and none has more"
    )


def after_probe(engine: str, load: Load, **values: float) -> Finding:
    """The conclusion about a queue before the engine, after a probe with these signals."""
    record = watched(engine, load)
    signals = {
        f"probe.{name}": Signal(value, "s", "5 requests of ours") for name, value in values.items()
    }
    record.apply(ProbeDone(float(READINGS), 1, CLIENT_WAIT, signals))
    return next(
        finding for finding in conclusions(record) if finding.rule == "serve.queue_before_engine"
    )


def of_probe(client: float, low: float, high: float, **more: float) -> dict[str, float]:
    return {
        "client_ttft_s": client, "engine_ttft_lower_s": low, "engine_ttft_upper_s": high,
        "before_engine_s": client - high, "before_engine_upper_s": client - low, "chunks": 32,
        **more,
    }  # fmt: skip


def test_a_page_of_an_engine_alone_cant_tell_what_waits_before_it_and_names_the_probe() -> None:
    found = next(
        finding
        for finding in conclusions(watched("vllm", Load()))
        if finding.rule == "serve.queue_before_engine"
    )
    assert (found.state, found.missing) == (
        "cant_tell",
        ("probe.before_engine_s",),
    ) and "P asks, and sends a few requests" in found.summary


def test_a_probe_names_a_wait_before_the_engine() -> None:
    found = after_probe("vllm", Load(), **of_probe(0.9, 0.2, 0.2))
    assert found.state == "fires" and found.summary.startswith(
        "a client waits 900 ms for its first token, the engine counts 200 ms: 700 ms pass before"
        " the engine: look at the network, the proxy"
    )
    assert {"probe.before_engine_s", "probe.client_ttft_s"} <= {
        entry.signal for entry in found.evidence
    }


@pytest.mark.parametrize(
    ("engine", "values", "state", "words"),
    [
        ("vllm", of_probe(0.21, 0.2, 0.2), "clear", "no more than 10.0 ms pass before the engine"),
        ("vllm", of_probe(0.05, 0.01, 0.02), "clear", "no more than 40.0 ms"),
        ("vllm", of_probe(2.0, 1.8, 1.85), "clear", "no more than 200 ms"),
        (
            "vllm",
            of_probe(0.9, 0.1, 0.85),
            "cant_tell",
            (
                "the engine counts 100 to 850 ms: 50.0 to 800 ms pass before the engine; requests"
                " of others hide ours"
            ),
        ),
        (
            "vllm",
            of_probe(0.9, 0.1, 0.1, chunks=1),
            "fires",
            "the answer comes in one piece: a proxy collects it",
        ),
        ("lmdeploy", of_probe(0.9, 0.1, 0.1), "fires", "800 ms pass before the engine"),
        (
            "llama.cpp",
            {"client_ttft_s": 0.9},
            "cant_tell",
            "a client waits 900 ms for its first token; the page has no TTFT to compare with",
        ),
    ],
)
def test_what_a_probe_shows_of_the_time_before_the_engine(
    engine: str, values: dict[str, float], state: str, words: str
) -> None:
    found = after_probe(engine, Load(), **values)
    assert found.state == state and words in found.summary, found.summary
