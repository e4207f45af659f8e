"""Reading /metrics: what is asked, how often, and what of the page is parsed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from gpuconsole.workloads.serving.scraping import (
    MAX_INTERVAL_S,
    MIN_INTERVAL_S,
    QUICK,
    SHARE,
    Scraper,
    models_counted,
    read_families,
    server_state,
)

VLLM = (
    Path(__file__).parents[2] / "fakes" / "server_answers" / "vllm-0.32" / "metrics.txt"
).read_text()
T = TypeVar("T")


def scraping(
    answer: Callable[[web.Request], Awaitable[web.Response]], use: Callable[[Scraper], Awaitable[T]]
) -> T:
    async def run() -> T:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with aiohttp.ClientSession() as session:
                return await use(
                    Scraper(session, f"http://127.0.0.1:{runner.addresses[0][1]}/metrics")
                )
        finally:
            await runner.cleanup()

    return asyncio.run(run())


async def read(scraper: Scraper) -> dict[str, float]:
    for _ in range(QUICK + 1):
        state, _ = await scraper.read()
    return {**state.gauges, **state.totals}


def test_a_server_with_a_filter_is_asked_for_the_known_metrics_only() -> None:
    asked: list[tuple[str, int]] = []

    async def answer(request: web.Request) -> web.Response:
        names = request.query.getall("name[]", [])
        asked.append((request.path, len(names)))
        wanted = [
            line
            for line in VLLM.splitlines()
            if any(line.startswith((f"{name}{{", f"{name} ")) for name in names)
        ]
        return web.Response(text="\n".join(wanted) + "\n")

    assert scraping(answer, read)["kv_cache_usage_ratio"] == 0
    assert {path for path, _ in asked} == {"/metrics/"} and asked[0][1] > 20


def test_a_server_without_a_filter_is_asked_for_the_page() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text=VLLM) if request.path == "/metrics" else web.Response(status=404)

    assert scraping(answer, read)["requests_running"] == 0
    assert asked == ["/metrics/", *["/metrics"] * (QUICK + 1)], "the filter is tried once"


def test_a_costly_page_is_read_seldom_and_a_cheap_page_often() -> None:
    async def costly(request: web.Request) -> web.Response:
        await asyncio.sleep(0.02)
        return web.Response(text="vllm:num_requests_running 7\n")

    async def very_costly(request: web.Request) -> web.Response:
        await asyncio.sleep(0.1)
        return web.Response(text="vllm:num_requests_running 7\n")

    async def cheap(request: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_running 7\n")

    async def interval(scraper: Scraper) -> tuple[float, float]:
        first = scraper.interval_s
        await read(scraper)
        return first, scraper.interval_s

    assert scraping(cheap, interval) == (MIN_INTERVAL_S, pytest.approx(MIN_INTERVAL_S, rel=0.5))
    first, later = scraping(costly, interval)
    assert first == MIN_INTERVAL_S and 0.02 / SHARE <= later <= MAX_INTERVAL_S
    assert scraping(very_costly, interval)[1] == MAX_INTERVAL_S


def test_the_values_of_the_known_metrics_equal_those_of_the_whole_page() -> None:
    assert server_state(read_families(VLLM), 1.0) == server_state(
        text_string_to_metric_families(VLLM), 1.0
    )


PAGES = {
    "sglang": (
        """sglang:num_running_reqs{priority="",tp_rank="0"} 14.0
sglang:num_running_reqs{priority="0",tp_rank="0"} 9.0
sglang:num_running_reqs{priority="1",tp_rank="0"} 5.0
sglang:num_requests_total{is_streaming="true"} 300
sglang:num_requests_total{is_streaming="false"} 200
sglang:num_retracted_requests_total 11
sglang:queue_time_seconds_sum 0.78
sglang:queue_time_seconds_count 10
sglang:token_usage 0.7
""",
        {"requests_running": 14, "kv_cache_usage_ratio": 0.7},
        {"requests": 500, "preemptions": 11, "queue_s_sum": 0.78, "queue_s_count": 10},
    ),
    "tgi": (
        """tgi_batch_current_size 4
tgi_queue_size 7
tgi_request_success 44
tgi_request_generated_tokens_bucket{le="1"} 0
tgi_request_generated_tokens_sum 8123
tgi_request_generated_tokens_count 44
tgi_request_queue_duration_sum 2.5
tgi_request_queue_duration_count 44
""",
        {"requests_running": 4, "requests_waiting": 7},
        {
            "requests": 44,
            "generation_tokens": 8123,
            "queue_s_sum": 2.5,
            "queue_s_count": 44,
            "request_output_tokens_sum": 8123,
            "request_output_tokens_count": 44,
        },
    ),
    "llama.cpp": (
        (
            "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"
            "llamacpp:tokens_predicted_total 1250\nllamacpp:tokens_predicted_seconds_total 5\n"
        ),
        {"requests_running": 2, "requests_waiting": 1},
        {"generation_tokens": 1250, "itl_s_sum": 5, "itl_s_count": 1250},
    ),
}


@pytest.mark.parametrize("engine", PAGES)
def test_the_names_of_other_engines(engine: str) -> None:
    page, gauges, totals = PAGES[engine]
    state = server_state(read_families(page), 1.0)
    assert (state.gauges, state.totals) == (gauges, totals)


def ranks(count: int, labels: str, metrics: dict[str, list[float]]) -> str:
    """A page on which `count` engines report `metrics`; `labels` with {n} for the engine."""
    return "".join(
        f"{name}{{{labels.format(n=n)}}} {values[n % len(values)]}\n"
        for name, values in metrics.items()
        for n in range(count)
    )


SEVERAL = {
    "vLLM with 8 engines": (
        ranks(
            8,
            'engine="{n}",model_name="m"',
            {
                "vllm:num_requests_running": [64, 64, 1, 0, 2, 1, 0, 3],
                "vllm:num_requests_waiting": [120, 105, 0, 0, 0, 0, 0, 0],
                "vllm:kv_cache_usage_perc": [0.99, 0.98, 0.1, 0, 0.1, 0.1, 0, 0.1],
            },
        ),
        {"requests_running": 135, "requests_waiting": 225, "kv_cache_usage_ratio": 0.99},
        ("0", {"requests_running": 64, "requests_waiting": 120, "kv_cache_usage_ratio": 0.99}),
    ),
    "SGLang with 4 data-parallel ranks of 2 tensor-parallel ranks": (
        "".join(
            ranks(
                4,
                f'model_name="m",dp_rank="{{n}}",tp_rank="{rank}",moe_ep_rank="0",pp_rank="0"',
                {
                    "sglang:num_running_reqs": [38, 37, 38, 38],
                    "sglang:max_running_requests": [64],
                    "sglang:token_usage": [0.2, 0.3, 0.2, 0.2],
                },
            )
            for rank in (0, 1)
        ),
        {"requests_running": 151, "sequence_limit": 64, "kv_cache_usage_ratio": 0.3},
        (
            "dp_rank 1",
            {"requests_running": 37, "sequence_limit": 64, "kv_cache_usage_ratio": 0.3},
        ),
    ),
    "vLLM behind Ray, by the shortest label that tells": (
        "".join(
            f'ray_vllm_num_requests_running{{WorkerId="{16 * str(n)}f",ReplicaId="worker-{n}",'
            f'model_name="m",engine="0"}} {running}\n'
            for n, running in (("a", 3), ("b", 4))
        ),
        {"requests_running": 7},
        ("worker-a", {"requests_running": 3}),
    ),
    "ranks of two servers, told apart by two labels": (
        "".join(
            f'vllm:num_requests_running{{engine="{engine}",instance="{instance}"}} 2\n'
            for engine in "01"
            for instance in ("a:1", "b:1")
        ),
        {"requests_running": 8},
        ("0, a:1", {"requests_running": 2}),
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_engines_on_a_page_are_kept_apart(name: str) -> None:
    page, together, (key, own) = SEVERAL[name]
    state = server_state(read_families(page), 1.0)
    assert {signal: state.gauges[signal] for signal in together} == together
    assert state.gauges["engines"] == len(state.engines) > 1
    assert own.items() <= state.engines[key].items()


@pytest.mark.parametrize("engine", PAGES)
def test_one_engine_is_not_several(engine: str) -> None:
    state = server_state(read_families(PAGES[engine][0]), 1.0)
    assert state.engines == {} and "engines" not in state.gauges


def triton(counts: dict[str, float]) -> str:
    """A page of TensorRT-LLM behind Triton: successful requests by model."""
    lines = [
        f'nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="{kind}",version="1"}} {n}'
        for kind, n in (("scheduled", 9), ("waiting", 2), ("max", 64))
    ]
    lines.append(
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",'
        'version="1"} 0.4'
    )
    for model, count in counts.items():
        for name, value in {
            "request_success": count,
            "request_failure": count / 10,
            "request_duration_us": 1.5e6 * count if model in ("ensemble", "big") else 1e5 * count,
            "queue_duration_us": 1e3 * count,
            "pending_request_count": 3,
        }.items():
            lines.append(f'nv_inference_{name}{{model="{model}",version="1"}} {value}')
    return "\n".join(lines) + "\n"


FOUR = {"ensemble": 70.0, "preprocessing": 74.0, "tensorrt_llm": 73.0, "postprocessing": 70.0}


@pytest.mark.parametrize(
    ("counts", "model", "requests"),
    [
        (FOUR, "", 70),
        (FOUR | {"tensorrt_llm_bls": 5.0}, "", 75),
        (FOUR | {"ensemble": 0.0}, "", 74),
        (FOUR, "ensemble", 70),
        (FOUR, "tensorrt_llm", 73),
    ],
)
def test_the_models_of_one_request_behind_triton_count_once(
    counts: dict[str, float], model: str, requests: float
) -> None:
    """26.0 requests/s for 6.2, and 0.73 s for 1.46."""
    state = server_state(read_families(triton(counts)), 1.0, model=model)
    assert (state.totals["requests"], state.totals["requests_failed"]) == (requests, requests / 10)
    assert state.totals["e2e_s_count"] == requests
    if counts["ensemble"] and model != "tensorrt_llm" and len(counts) == 4:
        assert state.totals["e2e_s_sum"] / requests == pytest.approx(1.5)
    assert state.gauges == {
        "requests_running": 9,
        "requests_waiting": 2,
        "sequence_limit": 64,
        "kv_cache_usage_ratio": 0.4,
    }


def test_independent_models_behind_triton_are_added_up() -> None:
    page = "".join(
        f'nv_inference_request_success{{model="{model}",version="1"}} {n}\n'
        for model, n in (("resnet", 3), ("bert", 4))
    )
    families = read_families(page)
    assert server_state(families, 1.0).totals["requests"] == 7
    assert models_counted(families) == ["bert", "resnet"]
    assert models_counted(read_families(triton(FOUR))) == ["ensemble"]


TOLD = {
    "vLLM": (
        'vllm:spec_decode_num_draft_tokens_total{engine="0"} 900\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 45\n'
        'vllm:lora_requests_info{max_lora="1",running_lora_adapters="a",'
        'waiting_lora_adapters="b"} 1.7e+09\n',
        {"draft_tokens": 900, "accepted_tokens": 45, "lora_limit": 1},
    ),
    "LMDeploy": (
        'lmdeploy:spec_decode_num_draft_tokens_total{engine="0"} 900\n'
        'lmdeploy:spec_decode_num_accepted_tokens_total{engine="0"} 45\n'
        'lmdeploy:request_success_total{finished_reason="ResponseType.SUCCESS"} 0\n'
        'lmdeploy:request_success_total{finished_reason="ResponseType.FINISH"} 70\n'
        'lmdeploy:request_success_total{finished_reason="ResponseType.CANCEL"} 5\n'
        'lmdeploy:request_success_total{finished_reason="ResponseType.INPUT_LENGTH_ERROR"} 2\n',
        {
            "draft_tokens": 900,
            "accepted_tokens": 45,
            "requests": 70,
            "requests_aborted": 5,
            "requests_failed": 2,
        },
    ),
    "SGLang": (
        'sglang:spec_accept_length{dp_rank="0"} 1.2\nsglang:spec_accept_length{dp_rank="1"} 1.4\n'
        'sglang:spec_accept_length{dp_rank="2"} 0\nsglang:spec_accept_rate{dp_rank="0"} 0.05\n'
        "sglang:num_grammar_queue_reqs 3\nsglang:lora_pool_slots_total 8\n",
        {
            "accept_length": 1.3,
            "accept_ratio": 0.05,
            "grammar_waiting": 3,
            "requests_deferred": 3,
            "lora_limit": 8,
        },
    ),
    "SGLang without speculation": ("sglang:spec_accept_length 0\nsglang:spec_accept_rate 0\n", {}),
}


@pytest.mark.parametrize("engine", TOLD)
def test_speculation_grammars_and_adapters_are_read(engine: str) -> None:
    page, told = TOLD[engine]
    state = server_state(read_families(page), 1.0)
    assert {**state.gauges, **state.totals} == pytest.approx(told)


def test_parsing_the_known_metrics_takes_a_fraction_of_the_time_for_the_page() -> None:
    def cpu_s(parse: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            begun = time.thread_time()
            parse()
            times.append(time.thread_time() - begun)
        return min(times)

    assert cpu_s(lambda: read_families(VLLM)) < 0.35 * cpu_s(
        lambda: list(text_string_to_metric_families(VLLM))
    )


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [(404, "", "HTTP 404"), (200, "<html>", "it contains no known metric")],
)
def test_a_page_without_metrics_costs_one_line(status: int, body: str, reason: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    with pytest.raises(ValueError, match=f"/metrics: {reason}; the state of the server is unknown"):
        scraping(answer, read)
