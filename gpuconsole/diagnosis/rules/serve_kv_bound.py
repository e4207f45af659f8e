"""serve.kv_bound: the KV cache is full, so requests wait, or are evicted and computed again."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Suggestion, high_if, percent

MAX_UTILIZATION = 0.95
FEWER = 0.8
"""The share of the running sequences that the advice keeps."""


CAREFULLY = {
    "sglang": "--mem-fraction-static",
    "tgi": "--cuda-memory-fraction",
    "tensorrt-llm": "--kv_cache_free_gpu_memory_fraction",
    "lmdeploy": "--cache-max-entry-count",
}
"""Flags whose share leaves out the activations, or is of the free memory: 0.95 of them may not
start."""


class ServeKvBound(Rule):
    id = "serve.kv_bound"
    title = "The KV cache limits this server"
    clear_title = "The KV cache has room"
    subject = "serving"
    once = ("serve.kv_full_preemption", "watch.kv_bound")
    thresholds = (serving.RATE, serving.FULL, serving.TAKEN)
    knobs = ("num_gpu_blocks_override", "max_num_seqs", "gpu_memory_utilization")
    reads = (
        "server.kv_cache_peak_ratio", "server.kv_cache_full_ratio",
        "server.preemptions_per_request", "server.preemptions", "server.requests_waiting",
        "server.requests_running",
        "server.requests_short_of_capacity", "server.engine_running", "server.sequence_limit",
        "server.queue_s", "server.e2e_s", "server.generation_tokens_per_s",
        "server.prompt_tokens_per_s", "client.output_tokens", "client.prompt_tokens",
    )  # fmt: skip
    text = """A request needs a block of the KV cache for each of its tokens. If none is free, a new
request waits, and a running one may be evicted (preempted, retracted) and computed again: its
prompt and its tokens so far are prefilled once more. The rule fires where the server preempts with
a full cache, or where the cache is full in most readings and requests wait. Preemptions are counted
over the window, not since the start of the server. More memory for the cache
(gpu_memory_utilization), keys and values in fp8, shorter contexts (max_model_len), or tensor
parallelism hold more requests; fewer requests at once (max_num_seqs) end the preemptions. vLLM's
counter of preemptions lags by some seconds. Blocks that only hold a prefix for later count as
free."""

    def judge(self, case: Case) -> Finding:
        peak = case.value("server.kv_cache_peak_ratio")
        evidence = case.evidence(("server.kv_cache_peak_ratio", serving.FULL))
        evidence += case.if_known(
            ("server.kv_cache_full_ratio", serving.TAKEN),
            ("server.preemptions_per_request", serving.RATE),
            ("server.requests_waiting", serving.NOTABLE_QUEUE),
            "server.requests_running",
        )
        preempts = serving.preempts(case)
        full = serving.cache_is_full(case) and serving.queues(case)
        if not preempts and not full:
            return self.clear(min(0.59, peak / serving.FULL), evidence)
        again = _computed_again(case)
        summary = (
            _evictions(case, preempts) + f"the KV cache is {percent(peak)} full at most,"
            f" {case.value('server.requests_running'):.0f} requests run and"
            f" {case.value('server.requests_waiting'):.0f} wait{serving.queue_words(case)}"
            + (f"; {percent(again)} of the prompt tokens were computed again" if again else "")
        )
        more = _more_cache(case)
        if more is None and serving.engine_of(case) in CAREFULLY:
            summary += f". Raise {CAREFULLY[serving.engine_of(case)]} in small steps: what is left"
            summary += " must hold the activations"
        elif more is None:
            summary += ". Keys and values in fp8, or a lower max_model_len, hold more requests"
        changes = [more, _fewer_at_once(case) if preempts else None]
        return self.fires(
            max(1.0, peak / serving.FULL),
            evidence,
            summary,
            recoverable=max(serving.recoverable(case), min(0.9, again)),
            confidence=high_if(preempts),
            suggestions=changes,
        )


def _evictions(case: Case, preempts: bool) -> str:
    if not preempts:
        return ""
    if case.has("server.preemptions_per_request"):
        return f"{case.value('server.preemptions_per_request'):.2f} preemptions per request, "
    return f"{case.value('server.preemptions'):.0f} preemptions, and no request ended; "


def _computed_again(case: Case) -> float:
    """Share of the server's prompt tokens that no client has sent: preempted sequences that were
    computed again. 0 where we do not send the load."""
    needed = ("client.output_tokens", "client.prompt_tokens", "server.generation_tokens_per_s")
    if not case.has(*needed):
        return 0.0
    output, prompt, rate = map(case.value, needed)
    sent = rate / max(1.0, output) * prompt
    return max(0.0, 1 - sent / max(1e-9, case.get("server.prompt_tokens_per_s", sent)))


def _fewer_at_once(case: Case) -> Suggestion | None:
    """Fewer sequences at once in one engine; never more than the limit of today."""
    slots = max(1, int(serving.running_of_engine(case) * FEWER))
    if slots >= case.get("server.sequence_limit", slots + 1.0):
        return None
    why = "run only as many sequences at once as the cache can hold to their end"
    return serving.restart(case, {"max_num_seqs": slots}, None, why)


def _more_cache(case: Case) -> Suggestion | None:
    """A larger cache: without the limit that a start argument set, or with a larger share of the
    device."""
    if case.knobs.get("num_gpu_blocks_override", 0):
        why = "let the KV cache use all free memory"
        return case.suggest(
            {"num_gpu_blocks_override": 0}, None, why, "omit --num-gpu-blocks-override"
        )
    utilization = case.knobs.get("gpu_memory_utilization")
    if serving.engine_of(case) in (*CAREFULLY, "embedded") or (
        isinstance(utilization, int | float) and utilization >= MAX_UTILIZATION
    ):
        return None
    why = "a larger share of the device for the cache"
    return serving.restart(case, {"gpu_memory_utilization": MAX_UTILIZATION}, None, why)
