"""What model servers report about themselves: recorded answers of every engine, served over real
sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from gpuconsole.model.serving import Fact, ServerFacts
from gpuconsole.workloads.serving.facts import (
    ARGUMENTS,
    ASK_S,
    LOG,
    ask_facts,
    complete,
    of_arguments,
    of_log,
)

ANSWERS = Path(__file__).parents[2] / "fakes" / "server_answers"
GIB = 2**30

MODELS, INFO, CACHE, SGLANG, OLD_SGLANG = (
    "/v1/models",
    "/info",
    "vllm:cache_config_info",
    "/server_info",
    "/get_server_info",
)
PROPS, SLOTS = "/props", "/slots"
SGLANG_FACTS: dict[str, tuple[float | str, str]] = {
    "engine": ("sglang", MODELS),
    "model": ("qwen/qwen2.5-0.5b-instruct", MODELS),
    "max_model_len": (32768, MODELS),
}
TABLE: dict[str, dict[str, tuple[float | str, str]]] = {
    "vllm-0.32": {
        "engine": ("vllm", MODELS),
        "version": ("0.32.0", "/version"),
        "model": ("m", MODELS),
        "max_model_len": (512, MODELS),
        "block_size": (128, CACHE),
        "num_blocks": (18, CACHE),
        "num_blocks_override": (18, CACHE),
        "kv_cache_tokens": (2304, CACHE),
        "enable_prefix_caching": (1, CACHE),
        "gpu_memory_utilization": (0.92, CACHE),
    },
    "vllm-0.8-v0": {
        "engine": ("vllm", MODELS),
        "version": ("0.8.5", "/version"),
        "model": ("qwen3-32b", MODELS),
        "max_model_len": (8192, MODELS),
        "block_size": (16, CACHE),
        "num_blocks": (573, CACHE),
        "num_blocks_override": (0, CACHE),
        "kv_cache_tokens": (573 * 16, CACHE),
        "enable_prefix_caching": (1, CACHE),
        "gpu_memory_utilization": (0.82, CACHE),
    },
    "sglang-2026-05": {
        **SGLANG_FACTS,
        "version": ("0.0.0.dev1+g54b06f199", SGLANG),
        "kv_cache_tokens": (20480, "sglang:max_total_num_tokens"),
        "quantization": ("none", SGLANG),
        "block_size": (1, SGLANG),
        "max_num_seqs": (128, SGLANG),
        "max_num_batched_tokens": (8192, SGLANG),
        "enable_prefix_caching": (1, SGLANG),
        "enable_chunked_prefill": (1, SGLANG),
        "gpu_memory_utilization": (0.836, SGLANG),
        "tensor_parallel_size": (1, SGLANG),
        "weight_bytes": (0.98 * GIB, SGLANG),
        "kv_bytes_per_token": (0.23 * GIB / 20480, SGLANG),
    },
    "sglang-2026-02": {
        **SGLANG_FACTS,
        "version": ("0.0.0.dev1+g9b55a98a6", OLD_SGLANG),
        "kv_cache_tokens": (20480, OLD_SGLANG),
        "quantization": ("none", OLD_SGLANG),
        "block_size": (1, OLD_SGLANG),
        "max_num_seqs": (128, OLD_SGLANG),
        "max_num_batched_tokens": (8192, OLD_SGLANG),
        "enable_prefix_caching": (1, OLD_SGLANG),
        "enable_chunked_prefill": (1, OLD_SGLANG),
        "gpu_memory_utilization": (0.836, OLD_SGLANG),
        "tensor_parallel_size": (1, OLD_SGLANG),
        "weight_bytes": (1.01 * GIB, OLD_SGLANG),
        "kv_bytes_per_token": (0.23 * GIB / 20480, OLD_SGLANG),
    },
    "tgi-1.2": {
        "engine": ("tgi", INFO),
        "version": ("1.2.0", INFO),
        "model": ("mistralai/Mistral-7B-Instruct-v0.1", INFO),
        "dtype": ("float16", INFO),
        "max_model_len": (2048, INFO),
        "kv_cache_tokens": (47920, INFO),
    },
    "tgi-2.4": {
        "engine": ("tgi", "/metrics"),
        "version": ("2.4.1", INFO),
        "model": ("bigscience/blomm-560m", MODELS),
        "max_model_len": (2048, INFO),
    },
    "llama.cpp-b8681": {
        "engine": ("llama.cpp", MODELS),
        "version": ("b8681-Debian", PROPS),
        "model": ("unsloth/Qwen3.6-35B-A3B-GGUF", MODELS),
        "max_model_len": (65536, PROPS),
        "max_num_seqs": (4, PROPS),
        "weight_bytes": (4912898304, MODELS),
    },
    "llama.cpp-b9992": {
        "engine": ("llama.cpp", MODELS),
        "model": ("gemma-4-12B-it-Q8_0.gguf", MODELS),
        "quantization": ("Q8_0", MODELS),
        "max_model_len": (65536, MODELS),
        "max_num_seqs": (2, SLOTS),
        "weight_bytes": (12653822144, MODELS),
    },
    "openai-proxy": {"model": ("gpt-5", MODELS)},
}
"""Engine and version, then each fact with its value and its source. Every other fact is None."""


def serving(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ask: Callable[[str], Awaitable[ServerFacts]],
) -> ServerFacts:
    """`ask` for facts at the address of a server whose every path is handled by `answer`."""

    async def run() -> ServerFacts:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            return await ask(f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    return asyncio.run(run())


async def facts_of(url: str, page: str = "", headers: dict[str, str] | None = None) -> ServerFacts:
    async with aiohttp.ClientSession(headers=headers) as session:
        return await ask_facts(session, url, text_string_to_metric_families(page))


@pytest.mark.parametrize("engine", TABLE)
def test_the_facts_of_an_engine_and_their_sources(engine: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        file = ANSWERS / engine / f"{request.path.strip('/').replace('/', '_')}.json"
        return web.Response(body=file.read_bytes()) if file.exists() else web.Response(status=404)

    page = ANSWERS / engine / "metrics.txt"
    found = serving(answer, lambda url: facts_of(url, page.read_text() if page.exists() else ""))
    told = {name: fact for name, fact in msgspec.structs.asdict(found).items() if fact is not None}
    assert told == {name: Fact(value, source) for name, (value, source) in TABLE[engine].items()}


def test_the_log_and_the_arguments_complete_the_facts_of_vllm() -> None:
    words = [
        "python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--max-num-seqs",
        "64",
        "--dtype",
        "auto",
        "--no-enable-prefix-caching",
        "--max-num-seqs=8",
    ]
    log = (ANSWERS / "vllm-0.32" / "log.txt").read_text().splitlines()
    reported = ServerFacts(enable_prefix_caching=Fact(1.0, CACHE))
    found = complete(reported, (LOG, of_log(log)), (ARGUMENTS, of_arguments(words)))
    assert found.max_num_seqs == Fact(8.0, ARGUMENTS), "the last of two equal flags counts"
    assert found.enable_prefix_caching == Fact(1.0, CACHE), (
        "the server's own report counts more than an argument"
    )
    assert (
        found.dtype == Fact("float32", LOG)
        and found.version == Fact("0.32.0", LOG)
        and found.max_model_len == Fact(512.0, LOG)
    )
    assert found.kv_cache_tokens == Fact(2304.0, LOG) and found.tensor_parallel_size == Fact(
        1.0, LOG
    )


def test_a_server_that_accepts_and_never_answers_costs_a_few_seconds() -> None:
    async def silence(request: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        raise AssertionError

    async def timed(url: str) -> ServerFacts:
        async with asyncio.timeout(4 * ASK_S):
            return await facts_of(url)

    assert serving(silence, timed) == ServerFacts()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"7",
        b'{"data": 7}',
        b'{"data": [null], "version": {}}',
        b'{"data": [{"id": []}]}',
    ],
)
def test_an_answer_in_another_format_has_no_facts(body: bytes) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body)

    assert serving(answer, facts_of) == ServerFacts()


def test_the_key_does_not_follow_a_redirection_to_another_host() -> None:
    seen: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        if request.host.startswith("localhost"):
            seen.append(request.headers.get("Authorization", ""))
            return web.json_response({"data": [{"id": "elsewhere"}]})
        return web.Response(
            status=302, headers={"Location": f"http://localhost:{request.url.port}{request.path}"}
        )

    found = serving(redirect, lambda url: facts_of(url, headers={"Authorization": "Bearer secret"}))
    assert found == ServerFacts() and seen == []
