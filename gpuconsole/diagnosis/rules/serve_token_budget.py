"""serve.token_budget: iterations are as large as the token budget allows, or prompts are split into
so many pieces, that requests wait for their first token."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Missing, Rule, Threshold, percent

NEAR = Threshold(
    "near",
    0.7,
    "of the budget",
    (
        "a mean iteration of 70 % of the budget: prompts fill most iterations, and the rest is"
        " decoding"
    ),
)
PIECES = Threshold("pieces", 4.0, "pieces", "a prompt takes four iterations or more (survey I07)")
IDLE = Threshold(
    "idle", 0.3, "MFU", "below 30 % of the FLOP/s there is room for larger pieces (survey I07)"
)
PREFILL = Threshold(
    "prefill",
    0.3,
    "of the request",
    "below this share of time in prefill, longer stalls of other requests are not worth it",
)


class ServeTokenBudget(Rule):
    id = "serve.token_budget"
    title = "The token budget of an iteration is used up"
    clear_title = "The token budget of an iteration has room"
    subject = "serving"
    once = ("serve.token_budget_small", "watch.token_budget")
    thresholds = (NEAR, PIECES, IDLE, PREFILL, serving.QUEUE, serving.SPIKE)
    knobs = ("max_num_batched_tokens",)
    reads = (
        "server.iteration_tokens", "server.token_limit", "server.requests_waiting",
        "server.requests_short_of_capacity", "server.prefill_s", "server.decode_s",
        "server.queue_s", "server.e2e_s", "mfu_ratio", "client.prompt_tokens",
        "server.request_prompt_tokens", "client.chunk_gap_p99_s", "client.chunk_gap_p50_s",
        "server.itl_p99_lower_s", "server.itl_p50_upper_s",
    )  # fmt: skip
    text = """The opposite of serve.prefill_stalls_decode, on the same setting. Each iteration
computes at most so many tokens (vLLM max_num_batched_tokens, SGLang chunked-prefill-size,
TensorRT-LLM max_num_tokens), and has a fixed cost: weights are read, kernels started, answers sent.
A prompt in many pieces pays that cost many times before its first token. The rule fires where
iterations are as large as the budget on average, or prompts take four iterations or more, and
requests wait for their first token. A larger budget starts prompts earlier, with larger gaps
between the tokens of running requests: the vLLM documentation recommends more than 8192 for
throughput and 2048 for better inter-token latency. A device that computes at 30 % of its peak or
more, and tokens that stall already, gain nothing. With several API servers vLLM counts iterations
more than once, so the mean is too low and the rule too careful."""

    def judge(self, case: Case) -> Finding:
        budget = serving.token_budget(case)
        if budget is None:
            raise Missing("server.token_limit")
        if not case.knobs.get("enable_chunked_prefill", True):
            return self.clear(summary="prompts are not split into pieces")
        full = case.get("server.iteration_tokens", 0.0) / max(1.0, budget)
        prompt = serving.prompt_tokens(case) if full < NEAR else 0.0
        pieces = prompt / max(1.0, budget)
        evidence = case.if_known(
            "server.iteration_tokens", "server.token_limit", "server.requests_waiting",
            "client.prompt_tokens", "server.request_prompt_tokens", "server.prefill_s",
            "server.decode_s", "server.queue_s", ("mfu_ratio", IDLE),
        )  # fmt: skip
        level = max(full / NEAR, pieces / PIECES)
        if level < 1:
            return self.clear(min(0.59, level), evidence)
        used, share = case.get("mfu_ratio", 0.0), _before_first(case)
        if used >= IDLE:
            why = "the device computes: larger pieces bring no earlier first token"
            return self.clear(0.59, evidence, why)
        waits = serving.queues(case) or share >= serving.QUEUE if full >= NEAR else share >= PREFILL
        if not waits:
            return self.clear(0.59, evidence, "requests hardly wait for their first token")
        if case.has(*serving.gap_signals(case)) and serving.spike(case) >= serving.SPIKE:
            why = "tokens of other requests already stall: larger pieces would stall them longer"
            return self.clear(0.5, evidence, why)
        words = (
            f"an iteration has {case.value('server.iteration_tokens'):.0f} of at most"
            f" {budget:.0f} tokens on average"
            if full >= NEAR
            else f"{prompt:.0f} prompt tokens take {pieces:.0f} iterations of {budget:.0f}"
        )
        summary = (
            f"{words}, and requests wait for their first token for {percent(share)} of their time"
        )
        larger = 2 * int(budget) if full >= NEAR else min(round(prompt), 4 * int(budget))
        why = (
            "larger pieces of prompts: earlier first tokens, longer gaps between the tokens of"
            " running requests"
        )
        change = serving.restart(case, {"max_num_batched_tokens": larger}, None, why)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=max(0.05, min(0.9, share * (1 - used / IDLE) * 0.5)),
            confidence="medium",
            suggestions=[change],
        )


def _before_first(case: Case) -> float:
    """The share of a request's time in the server before its first token; 0 where the server does
    not report its times."""
    queue, prefill = case.get("server.queue_s", 0.0), case.get("server.prefill_s", 0.0)
    parts = queue + prefill + case.get("server.decode_s", 0.0)
    whole = max(parts, case.get("server.e2e_s", 0.0))
    return min(1.0, (queue + prefill) / whole) if whole > 0 else 0.0
