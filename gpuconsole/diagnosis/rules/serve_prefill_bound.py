"""serve.prefill_bound: a request spends most of its time in the server on reading its prompt."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, percent

SHARE = Threshold(
    "share",
    0.5,
    "ratio",
    "half of the time in prefill is notable, 70 % is high (tensward; survey I05)",
)


NOTICED = Threshold(
    "noticed", 0.1, "s", "people notice a wait of 0.1 s (Miller 1968, Nielsen 1993)"
)
WITH_PREFIX_CACHE = ("", "vllm", "embedded", "sglang")


class ServePrefillBound(Rule):
    id = "serve.prefill_bound"
    title = "Prefill takes most of the time"
    clear_title = "Prefill is not the bottleneck"
    subject = "serving"
    thresholds = (SHARE, NOTICED)
    knobs = ("prompt_tokens",)
    reads = (
        "server.prefill_s", "server.decode_s", "client.prompt_tokens", "client.output_tokens",
        "server.request_prompt_tokens", "server.request_output_tokens", "server.prefix_hit_ratio",
        "server.requests_waiting", "server.requests_short_of_capacity", "server.requests_running",
    )  # fmt: skip
    text = """A prompt of n tokens costs 2 P n FLOPs (P parameters) before the first token, and no
batching reduces that. What helps: shorter prompts, a prefix cache for their shared part, lower
precision, tensor parallelism for the latency, separate machines for prefill. The rule compares the
server's own times of prefill and decode, both from admission on, without the queue."""

    def judge(self, case: Case) -> Finding:
        prefill, decode = case.value("server.prefill_s"), case.value("server.decode_s")
        share = prefill / max(1e-9, prefill + decode)
        evidence = case.evidence("server.prefill_s", "server.decode_s")
        evidence += case.if_known(
            "client.prompt_tokens", "client.output_tokens", "server.request_prompt_tokens",
            "server.request_output_tokens", "server.prefix_hit_ratio",
        )  # fmt: skip
        if share < SHARE:
            return self.clear(share / SHARE, evidence)
        waits = case.has("server.requests_waiting") and serving.queues(case)
        idle = case.get("server.requests_running", 1.0) < 1
        if not waits and (prefill < NOTICED or idle):
            return self.clear(0.59, evidence, "nobody waits for another's prompt")
        prompt = serving.prompt_tokens(case)
        output = case.get("client.output_tokens", case.get("server.request_output_tokens", 0.0))
        hits = case.get("server.prefix_hit_ratio", -1.0)
        summary = (
            f"prefill takes {percent(share)} of the time from admission to the last token:"
            f" {prompt:.0f} prompt tokens"
            + (f" for {output:.0f} output tokens" if output else "")
            + (f"; the prefix cache holds {percent(hits)} of them" if hits >= 0 else "")
        )
        why = "half the prompt: retrieve less text, or summarise it"
        code = "shorten the prompts"
        if serving.engine_of(case) in WITH_PREFIX_CACHE:
            code += "; or put their shared part first and keep the prefix cache on"
        change = case.suggest({"prompt_tokens": max(1, round(prompt / 2))}, None, why, code)
        return self.fires(
            share / SHARE,
            evidence,
            summary,
            recoverable=share * 0.5,
            confidence=high_if(share >= 0.7),
            suggestions=[change],
        )
