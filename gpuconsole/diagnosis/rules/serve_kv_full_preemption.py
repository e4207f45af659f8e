"""serve.kv_full_preemption: the KV cache is too small for the running requests, so some are evicted
and computed again."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Suggestion, Threshold, percent

RATE = Threshold(
    "rate",
    0.01,
    "per request",
    "1 preemption in 100 requests is notable, 5 are high (tensward; survey I04)",
)
FULL = Threshold("full", 0.9, "ratio", "peak use of the KV cache of 90 % or more (survey I04)")
MAX_UTILIZATION = 0.95


class ServeKvFullPreemption(Rule):
    id = "serve.kv_full_preemption"
    title = "The KV cache is full and requests are preempted"
    clear_title = "The KV cache is large enough"
    subject = "serving"
    thresholds = (RATE, FULL)
    knobs = ("num_gpu_blocks_override", "max_num_seqs", "gpu_memory_utilization")
    reads = (
        "server.preemptions_per_request", "server.kv_cache_peak_ratio", "server.requests_running",
        "server.requests_waiting", "server.generation_tokens_per_s", "client.output_tokens",
        "client.prompt_tokens", "server.prompt_tokens_per_s", "server.queue_s", "server.e2e_s",
    )  # fmt: skip
    text = """If a running sequence needs a KV block and none is free, the server evicts the
youngest sequence and computes it again later: its prompt and its tokens so far are prefilled again.
Preemptions are counted over the window, not since the start of the server. The advice of vLLM: more
memory for the cache (gpu_memory_utilization), fewer sequences at once (max_num_seqs), a smaller
max_num_batched_tokens, fp8 keys and values, tensor parallelism. vLLM's counter lags by some
seconds; a falling number of running requests with a full cache shows preemptions earlier."""

    def judge(self, case: Case) -> Finding:
        rate, peak = (
            case.value("server.preemptions_per_request"),
            case.value("server.kv_cache_peak_ratio"),
        )
        evidence = case.evidence(
            ("server.preemptions_per_request", RATE), ("server.kv_cache_peak_ratio", FULL)
        )
        evidence += case.evidence("server.requests_running", "server.requests_waiting")
        if rate < RATE or peak < FULL:
            return self.clear(min(rate / RATE, peak / FULL), evidence)
        again, waiting = _computed_again(case), serving.queue_ratio(case)
        summary = (
            f"{rate:.2f} preemptions per request, with the KV cache {percent(peak)} full. Requests"
            f" wait in the queue for {percent(waiting)} of their time, and {percent(again)} of the"
            " prompt tokens were computed again"
        )
        recoverable = max(0.05, min(0.9, max(again, waiting)))
        slots = max(1, int(case.value("server.requests_running") * 0.8))
        why = "run only as many sequences at once as the cache can hold to their end"
        changes = [_more_cache(case), serving.restart(case, {"max_num_seqs": slots}, None, why)]
        return self.fires(
            rate / RATE,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="high",
            suggestions=changes,
        )


def _computed_again(case: Case) -> float:
    """Share of the server's prompt tokens that no client has sent: preempted sequences that were
    computed again."""
    answered = case.value("server.generation_tokens_per_s") / max(
        1.0, case.value("client.output_tokens")
    )
    sent = answered * case.value("client.prompt_tokens")
    return max(0.0, 1 - sent / max(1e-9, case.get("server.prompt_tokens_per_s", sent)))


def _more_cache(case: Case) -> Suggestion | None:
    """A larger cache: without the limit that a start argument set, or with a larger share of the
    device."""
    if case.knobs.get("num_gpu_blocks_override", 0):
        why = "let the KV cache use all free memory"
        return case.suggest(
            {"num_gpu_blocks_override": 0}, None, why, "omit --num-gpu-blocks-override"
        )
    utilization = case.knobs.get("gpu_memory_utilization")
    if case.knobs.get("server") == "embedded" or (
        isinstance(utilization, int | float) and utilization >= MAX_UTILIZATION
    ):
        return None
    why = "a larger share of the device for the cache"
    return serving.restart(case, {"gpu_memory_utilization": MAX_UTILIZATION}, None, why)
