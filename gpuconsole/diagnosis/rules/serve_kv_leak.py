"""serve.kv_leak: blocks of the KV cache stay in use although no request runs or waits."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent

LEFT = Threshold(
    "left",
    0.1,
    "ratio",
    "a tenth of the cache without a request; kept prefixes count as free in vLLM and SGLang",
)
COUNT_AS_FREE = ("vllm", "sglang")


class ServeKvLeak(Rule):
    id = "serve.kv_leak"
    title = "The KV cache stays in use without a request"
    clear_title = "The KV cache is free without a request"
    subject = "serving"
    thresholds = (LEFT,)
    reads = ("server.kv_cache_idle_ratio", "server.kv_cache_usage_ratio")
    text = """No request runs or waits in most readings, and a part of the KV cache is in use all
the same. Blocks of requests that ended or were aborted were not given back, or a transfer of keys
and values (disaggregated prefill, a KV connector) never ended. Later requests have less room, until
none is admitted. Only a restart gives the blocks back; an issue for the engine needs its version
and its connector. vLLM and SGLang count blocks that only hold a prefix for later as free; other
engines may not."""

    def judge(self, case: Case) -> Finding:
        if not case.has("server.kv_cache_idle_ratio"):
            case.value("server.kv_cache_usage_ratio")
            return self.clear(summary="requests run or wait in most readings")
        left = case.value("server.kv_cache_idle_ratio")
        evidence = case.evidence(("server.kv_cache_idle_ratio", LEFT))
        if left < LEFT:
            return self.clear(min(0.59, left / LEFT), evidence)
        if serving.engine_of(case) not in COUNT_AS_FREE:
            return self.cant_tell("this engine may count prefixes that it keeps as used")
        return self.fires(
            left / LEFT,
            evidence,
            f"{percent(left)} of the KV cache is in use while no request runs or waits: its blocks"
            " were not given back, and only a restart frees them",
            recoverable=min(0.9, left),
            confidence="high",
        )
