"""The /metrics page of any supported model server, under one set of names; read again and again, at most as often as its cost allows."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable
from urllib.parse import quote

import aiohttp
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpuconsole.agent.clock import now
from gpuconsole.wire.events import ServerState
from gpuconsole.workloads.serving.http import explain, read_body, redirection

# --- reads the /metrics page of a model server again and again, at most as often as its cost allows ----------

SHARE = 0.01
"""The share of the time that readings may take: below the noise of a measurement on a shared machine (2 to 5 %)."""
SHORTEST_S, LONGEST_S = 0.5, 4.0
"""Bounds of the time between two readings. The screen marks values as old after 5 s (session.freshness)."""
QUICK = 4
"""The first readings follow each other by SHORTEST_S, so that the screen fills."""
LAST = 5
"""The cost is the smallest of this many readings: other load on the machine only adds to a time."""
TIMEOUT_S = 2.0


class Scraper:
    """The metrics page at `url`.

    vLLM answers `/metrics/?name[]=...` with the named metrics only: 4 KB in 3 ms instead of 49 KB in 12 ms (vLLM 0.32 on a CPU), and reading
    the answer takes 1 ms instead of 13 ms. A server that has no such filter is asked for the whole page.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._filtered = True
        self._costs: deque[float] = deque(maxlen=LAST)
        self._read = 0

    @property
    def interval_s(self) -> float:
        """Seconds until the next reading."""
        if self._read < QUICK:
            return SHORTEST_S
        return min(LONGEST_S, max(SHORTEST_S, min(self._costs, default=0.0) / SHARE))

    async def read(self) -> tuple[ServerState, list[Metric]]:
        """One reading: the state, and the metrics by families. Raises ValueError, with the address and one line, where there is no such page."""
        try:
            return await self._read_once()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            raise ValueError(f"{self._url}: {explain(problem)}; the state of the server is unknown") from None

    async def _read_once(self) -> tuple[ServerState, list[Metric]]:
        if self._filtered:
            page = await self._page(f"{self._url}/?{'&'.join(f'name[]={quote(name)}' for name in NAMES)}")
            if page is not None and page[1]:
                return page
            self._filtered = False
            self._costs.clear()
        page = await self._page(self._url)
        if page is None:
            raise ValueError("it contains no known metric")
        return page

    async def _page(self, url: str) -> tuple[ServerState, list[Metric]] | None:
        """The page at `url`, and its cost: the time of the request, and the CPU time of reading the answer. None without a known metric."""
        asked = time.perf_counter()
        async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), allow_redirects=False) as answer:
            status, text, t = answer.status, (await read_body(answer)).decode(errors="replace"), now()
            elsewhere = redirection(answer)
        cost, begun = time.perf_counter() - asked, time.thread_time()
        if status != 200:
            if self._filtered:
                return None
            raise ValueError(elsewhere or f"HTTP {status}")
        families = read_families(text)
        state = server_state(families, t)
        self._costs.append(cost + time.thread_time() - begun)
        self._read += 1
        return (state, families) if state.gauges or state.totals else None


# --- the /metrics page of any supported model server, under one set of names ---------------------------------

GAUGES = {
    "vllm:num_requests_running": "requests_running",
    "vllm:num_requests_waiting": "requests_waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage_ratio",
    "vllm:gpu_cache_usage_perc": "kv_cache_usage_ratio",
    "sglang:num_running_reqs": "requests_running",
    "sglang:num_queue_reqs": "requests_waiting",
    "sglang:token_usage": "kv_cache_usage_ratio",
    "tgi_batch_current_size": "requests_running",
    "tgi_queue_size": "requests_waiting",
    "llamacpp:requests_processing": "requests_running",
    "llamacpp:requests_deferred": "requests_waiting",
    "llamacpp:kv_cache_usage_ratio": "kv_cache_usage_ratio",
}
TOTALS = {
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:gpu_prefix_cache_queries_total": "prefix_queries",
    "vllm:gpu_prefix_cache_hits_total": "prefix_hits",
    "vllm:request_success_total": "requests",
    "vllm:estimated_flops_per_gpu_total": "flops",
    "vllm:estimated_read_bytes_per_gpu_total": "read_bytes",
    "vllm:estimated_write_bytes_per_gpu_total": "write_bytes",
    "sglang:num_requests_total": "requests",
    "sglang:num_retracted_requests_total": "preemptions",
    "sglang:prompt_tokens_total": "prompt_tokens",
    "sglang:generation_tokens_total": "generation_tokens",
    "tgi_request_success": "requests",
    "tgi_request_generated_tokens_sum": "generation_tokens",
    "tgi_request_input_length_sum": "prompt_tokens",
    "llamacpp:prompt_tokens_total": "prompt_tokens",
    "llamacpp:tokens_predicted_total": "generation_tokens",
}
TIMES = {
    "vllm:time_to_first_token_seconds": "ttft_s",
    "vllm:inter_token_latency_seconds": "itl_s",
    "vllm:time_per_output_token_seconds": "itl_s",
    "vllm:e2e_request_latency_seconds": "e2e_s",
    "vllm:request_queue_time_seconds": "queue_s",
    "vllm:request_prefill_time_seconds": "prefill_s",
    "vllm:request_decode_time_seconds": "decode_s",
    "vllm:iteration_tokens_total": "iteration_tokens",
    "sglang:time_to_first_token_seconds": "ttft_s",
    "sglang:e2e_request_latency_seconds": "e2e_s",
    "sglang:inter_token_latency_seconds": "itl_s",
    "sglang:queue_time_seconds": "queue_s",
    "tgi_request_duration": "e2e_s",
    "tgi_request_queue_duration": "queue_s",
    "tgi_request_mean_time_per_token_duration": "itl_s",
}
"""Histograms of which only sum and count are kept: the means are exact, but the buckets are too coarse for percentiles."""
SUMMED = ("_sum", "_count")
CACHE_USAGE = "kv_cache_usage_ratio"
CACHE_INFO, SGLANG_TOKENS = "vllm:cache_config_info", "sglang:max_total_num_tokens"
"""Metrics that hold facts about the server (facts.py)."""


NAMES = tuple(
    name for name in (*GAUGES, *TOTALS, *(f"{name}{end}" for name in TIMES for end in SUMMED), CACHE_INFO) if name.startswith("vllm:")
)
"""What vLLM is asked for, where it answers with the named metrics only."""
_KNOWN = {*GAUGES, *TOTALS, *(f"{name}{end}" for name in TIMES for end in SUMMED), CACHE_INFO, SGLANG_TOKENS}
_NAME = re.compile(r"[^{\s]*")


LONGEST_LINE = 2**14


def read_families(text: str) -> list[Metric]:
    """The known metrics of the exposition `text`. Raises ValueError for an invalid page.

    A page of vLLM has 600 lines, of which 40 are known. Only these are parsed: 1 ms instead of 13 ms. The time that the parser takes for a line of
    quotation marks grows with the square of its length: 33 s for 1.3 MB.
    """
    lines = [line for line in text.splitlines() if _NAME.match(line)[0] in _KNOWN]  # type: ignore[index]  # the pattern matches any line
    if any(len(line) > LONGEST_LINE for line in lines):
        raise ValueError(f"a line has more than {LONGEST_LINE} characters")
    return list(text_string_to_metric_families("\n".join(lines) + "\n"))


def server_state(families: Iterable[Metric], t: float) -> ServerState:
    """The values of `families` at `t`, summed over engines (shares: the maximum)."""
    gauges: dict[str, float] = {}
    totals: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if sample.labels.get("priority"):  # SGLang reports each priority, and the sum under an empty label
                continue
            if (gauge := GAUGES.get(sample.name)) is not None:
                old = gauges.get(gauge, 0.0)
                gauges[gauge] = max(old, sample.value) if gauge == CACHE_USAGE else old + sample.value
            elif (total := TOTALS.get(sample.name) or _of_histogram(sample.name)) is not None:
                totals[total] = totals.get(total, 0.0) + sample.value
    return ServerState(t, gauges, totals)


def _of_histogram(name: str) -> str | None:
    for suffix in SUMMED:
        if name.endswith(suffix) and (metric := TIMES.get(name.removesuffix(suffix))):
            return metric + suffix
    return None
