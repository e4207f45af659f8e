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
