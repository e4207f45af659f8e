"""serve.kv_full_preemption: the KV cache is too small for the running requests, so some are evicted and computed again."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _serving
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding, Suggestion

RATE = Threshold("rate", 0.01, "per request", "1 preemption in 100 requests is notable, 5 are high (tensward; survey I04)")
FULL = Threshold("full", 0.9, "ratio", "peak use of the KV cache of 90 % or more (survey I04)")
MOST_UTILIZATION = 0.95


class ServeKvFullPreemption(Rule):
    id = "serve.kv_full_preemption"
    title = "The KV cache is full and requests are preempted"
    clear_title = "The KV cache is large enough"
    subject = "serving"
    thresholds = (RATE, FULL)
    knobs = ("num_gpu_blocks_override", "max_num_seqs", "gpu_memory_utilization")
    text = """If a running sequence needs a KV block and none is free, the server evicts the youngest sequence and computes it again later: its prompt and its tokens
so far are prefilled again. Preemptions are counted over the window, not since the start of the server. The advice of vLLM: more memory for the
cache (gpu_memory_utilization), fewer sequences at once (max_num_seqs), a smaller max_num_batched_tokens, fp8 keys and values, tensor
parallelism. vLLM's counter lags by some seconds; a falling number of running requests with a full cache shows preemptions earlier."""

    def check(self, case: Case) -> Finding:
        rate, peak = case.value("server.preemptions_per_request"), case.value("server.kv_cache_peak_ratio")
        evidence = (
            case.evidence("server.preemptions_per_request", RATE.value),
            case.evidence("server.kv_cache_peak_ratio", FULL.value),
            case.evidence("server.requests_running"),
            case.evidence("server.requests_waiting"),
        )
        if rate < RATE.value or peak < FULL.value:
            return self.clear(min(rate / RATE.value, peak / FULL.value), evidence)
        again, waiting = _computed_again(case), _serving.queue_ratio(case)
        return self.fires(
            f"{rate:.2f} preemptions per request, with the KV cache {peak:.0%} full. Requests wait in the queue for {waiting:.0%} of their time, and "
            f"{again:.0%} of the prompt tokens were computed again",
            recoverable=max(0.05, min(0.9, max(again, waiting))),
            confidence="high",
            evidence=evidence,
            suggestions=_suggestions(case),
            level=rate / RATE.value,
        )


def _computed_again(case: Case) -> float:
    """Share of the server's prompt tokens that no client has sent: preempted sequences that were computed again."""
    answered = case.value("server.generation_tokens_per_s") / max(1.0, case.value("client.output_tokens"))
    sent = answered * case.value("client.prompt_tokens")
    return max(0.0, 1 - sent / max(1e-9, case.get("server.prompt_tokens_per_s", sent)))


def _suggestions(case: Case) -> list[Suggestion | None]:
    blocks, utilization = int(case.knobs["num_gpu_blocks_override"]), float(case.knobs["gpu_memory_utilization"])
    more = suggest(
        case,
        {"num_gpu_blocks_override": 0},
        None,
        "let the KV cache use all free memory",
        "omit --num-gpu-blocks-override",
    )
    fewer_slots = max(1, int(case.value("server.requests_running") * 0.8))
    fewer = suggest(
        case,
        {"max_num_seqs": fewer_slots},
        None,
        "run only as many sequences at once as the cache can hold to their end",
        f"vllm serve ... --max-num-seqs {fewer_slots}",
    )
    larger = suggest(
        case,
        {"gpu_memory_utilization": MOST_UTILIZATION},
        None,
        "a larger share of the device for the cache",
        f"vllm serve ... --gpu-memory-utilization {MOST_UTILIZATION:g}",
    )
    return [more if blocks else larger if utilization < MOST_UTILIZATION and case.knobs["server"] == "vllm" else None, fewer]
