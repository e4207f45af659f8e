"""serve.long_context_cliff: contexts are so long that reading keys and values dominates the time of
a token."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold

RATIO = Threshold(
    "ratio",
    1.0,
    "of the weights",
    (
        "keys and values of half the size of the weights are notable, of the full size high"
        " (tensward; survey I14)"
    ),
)
LONG = Threshold(
    "long", 1024.0, "tokens", "with shorter contexts, a large share comes from the batch"
)


class ServeLongContextCliff(Rule):
    id = "serve.long_context_cliff"
    title = "Long contexts slow down every token"
    clear_title = "Context length costs little time"
    subject = "load"
    thresholds = (RATIO, LONG)
    knobs = ("kv_cache_dtype", "prompt_tokens")
    reads = (
        "server.weight_bytes", "server.requests_running", "client.prompt_tokens",
        "client.output_tokens", "server.kv_bytes_per_token", "client.tpot_s",
    )  # fmt: skip
    text = """Each decoded token reads all weights, and the keys and values of every token before
it. When keys and values are larger than the weights, the time per token grows in proportion to the
context, and a larger batch no longer helps. What helps: fewer bytes per token (fp8 keys and values,
grouped-query attention), fewer tokens, or more devices."""

    def judge(self, case: Case) -> Finding:
        weights, kv, context = (
            case.value("server.weight_bytes"),
            serving.kv_bytes(case),
            serving.context_tokens(case),
        )
        ratio = kv / max(1.0, weights)
        evidence = case.evidence(
            ("client.prompt_tokens", LONG),
            "server.kv_bytes_per_token",
            "server.weight_bytes",
            "client.tpot_s",
        )
        if context < LONG or ratio < RATIO:
            return self.clear(min(context / LONG, ratio / RATIO), evidence)
        summary = (
            f"an iteration reads {kv / 1e6:.0f} MB of keys and values and {weights / 1e6:.0f} MB of"
            f" weights, at {context:.0f} tokens of context"
        )
        halved = serving.restart(
            case, {"kv_cache_dtype": "fp8"}, None, "half the bytes per token of context"
        )
        code = "retrieve less; summarise the conversation so far; cap max_model_len"
        shorter = case.suggest(
            {"prompt_tokens": max(1, round(context / 2))}, None, "half the context", code
        )
        changes = [halved if case.knobs.get("server") == "vllm" else None, shorter]
        recoverable = kv / (kv + weights) * 0.5
        return self.fires(
            ratio / RATIO,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="medium",
            suggestions=changes,
        )
