"""The metrics of the embedded server, with the names that vLLM 0.32 uses on /metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gpuconsole.workloads.serving.engine.core import Core
from gpuconsole.workloads.serving.engine.scheduler import Iteration
from gpuconsole.workloads.serving.engine.scheduler import Sequence as TokenSequence

LABELS = ("model_name", "engine")
LATENCIES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
BATCHES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """Counters grow with each event; each iteration sets the gauges."""

    def __init__(self, model: str, core: Core, cache: dict[str, str], facts: Mapping[str, float]) -> None:
        """`facts`: the facts that the server reports at /facts; the FLOPs and bytes of an iteration follow from them."""
        self._core, self._facts = core, facts
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self._counted = (0, 0, 0)
        self._running = self._gauge("num_requests_running", "Sequences in the current iteration")
        self._waiting = self._gauge("num_requests_waiting", "Sequences that wait for a sequence slot or for KV blocks")
        self._kv = self._gauge("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1")
        self._preemptions = self._counter("num_preemptions", "Preempted sequences, which are recomputed")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens computed")
        self._generated = self._counter("generation_tokens", "Tokens generated")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._flops = self._counter("estimated_flops_per_gpu", "FLOPs of the model's matrices and attention")
        self._bytes = self._counter("estimated_read_bytes_per_gpu", "Bytes of weights and KV cache that iterations must read")
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token")
        self._itl = self._histogram("inter_token_latency_seconds", "Between two tokens of a sequence")
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the last token")
        self._queue = self._histogram("request_queue_time_seconds", "From arrival to the first iteration")
        self._prefill = self._histogram("request_prefill_time_seconds", "From the first iteration to the first token")
        self._decode = self._histogram("request_decode_time_seconds", "From the first token to the last")
        self._iteration = self._histogram("iteration_tokens_total", "Tokens computed in an iteration", BATCHES)
        self._done = Counter("vllm:request_success", "Requests by finish reason", (*LABELS, "finished_reason"), registry=self._registry)
        Gauge("vllm:cache_config_info", "Configuration of the KV cache", tuple(cache), registry=self._registry).labels(**cache).set(1)

    def iteration(self, plan: Iteration) -> None:
        scheduler, prefixes = self._core.scheduler, self._core.prefixes
        self._running.set(len(scheduler.running))
        self._waiting.set(len(scheduler.waiting))
        self._kv.set(scheduler.kv_usage)
        if plan.tokens:
            self._iteration.observe(plan.tokens)
            self._cost(plan)
        self._prompt.inc(sum(end - start for _, start, end in plan.prefills))
        totals = (scheduler.preemptions, prefixes.queries, prefixes.hits)
        for counter, now, before in zip((self._preemptions, self._queries, self._hits), totals, self._counted, strict=True):
            counter.inc(now - before)
        self._counted = totals

    def _cost(self, plan: Iteration) -> None:
        """FLOPs: 2 per weight and token, 4 per layer, width and attended position. Bytes: all weights once, and the keys and values of the sequences."""
        facts = self._facts
        seen = sum((end - start) * (start + end) / 2 for _, start, end in plan.prefills) + sum(one.computed for one in plan.decodes)
        held = sum(end for _, _, end in plan.prefills) + sum(one.computed for one in plan.decodes)
        attention = 4 * facts["n_layer"] * facts["d_model"] * seen
        self._flops.inc(2 * facts["matrix_parameters"] * plan.tokens + attention)
        passes = len(plan.prefills) + bool(plan.decodes)  # each piece of a prompt is a separate pass through the model
        self._bytes.inc(passes * facts["weight_bytes"] + held * facts["kv_bytes_per_token"])

    def token(self, sequence: TokenSequence, now: float) -> None:
        self._generated.inc()
        if sequence.first is None:
            self._ttft.observe(now - sequence.arrived)
        elif sequence.last is not None:
            self._itl.observe(now - sequence.last)

    def finished(self, sequence: TokenSequence, reason: str) -> None:
        self._done.labels(**self._labels, finished_reason=reason).inc()
        arrived, admitted, first, last = sequence.arrived, sequence.admitted, sequence.first, sequence.last
        if admitted is not None and first is not None and last is not None:
            for histogram, seconds in (
                (self._queue, admitted - arrived),
                (self._prefill, first - admitted),
                (self._decode, last - first),
                (self._e2e, last - arrived),
            ):
                histogram.observe(seconds)

    def text(self, names: Sequence[str] = ()) -> bytes:
        """The page; with `names` only these metrics, as prometheus_client answers `?name[]=`."""
        return generate_latest(self._registry.restricted_registry(names) if names else self._registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"vllm:{name}", meaning, LABELS, registry=self._registry).labels(**self._labels)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"vllm:{name}", meaning, LABELS, registry=self._registry).labels(**self._labels)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...] = LATENCIES) -> Histogram:
        return Histogram(f"vllm:{name}", meaning, LABELS, buckets=buckets, registry=self._registry).labels(**self._labels)
