"""watch.token_budget: the iterations of a watched server are as large as its token budget allows,
so prompts wait for their turn."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving, watched
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent

NEAR = Threshold(
    "near",
    0.7,
    "of the budget",
    (
        "a mean iteration of 70 % of the budget: prompts fill most iterations, and the rest is"
        " decoding"
    ),
)


class WatchTokenBudget(Rule):
    id = "watch.token_budget"
    title = "The token budget of an iteration is used up"
    clear_title = "The token budget of an iteration has room"
    subject = "watched"
    thresholds = (NEAR, watched.QUEUE)
    knobs = ("max_num_batched_tokens",)
    reads = (
        "server.iteration_tokens", "server.token_limit", "server.requests_waiting",
        "server.requests_short_of_capacity", "server.prefill_s", "server.queue_s", "server.e2e_s",
    )  # fmt: skip
    text = """Each iteration computes at most so many tokens (vLLM max_num_batched_tokens, SGLang
chunked-prefill-size, TensorRT-LLM max_num_tokens). If iterations are as large as that, and requests
wait for their first token, a larger budget starts prompts earlier, with larger gaps between the
tokens of running requests. With several API servers vLLM counts iterations more than once, so the
mean is too low and the rule too careful."""

    def judge(self, case: Case) -> Finding:
        tokens, budget = case.value("server.iteration_tokens"), case.value("server.token_limit")
        share = tokens / max(1.0, budget)
        evidence = case.evidence(
            "server.iteration_tokens", "server.token_limit", "server.requests_waiting"
        )
        evidence += case.if_known("server.prefill_s", "server.queue_s")
        if share < NEAR:
            return self.clear(min(0.59, share / NEAR), evidence)
        whole = case.get("server.e2e_s", 0.0)
        before_first = (
            (case.get("server.prefill_s", 0.0) + case.get("server.queue_s", 0.0)) / whole
            if whole > 0
            else 0.0
        )
        if not watched.queues(case) and before_first < watched.QUEUE:
            return self.clear(0.59, evidence, "no request waits for its first token")
        summary = (
            f"an iteration has {tokens:.0f} of at most {budget:.0f} tokens on average, and requests"
            f" wait for their first token for {percent(min(1.0, before_first))} of their time"
        )
        why = (
            "larger pieces of prompts: earlier first tokens, longer gaps between the tokens of"
            " running requests"
        )
        change = serving.restart(case, {"max_num_batched_tokens": 2 * int(budget)}, None, why)
        recoverable = max(0.05, min(0.9, 0.5 * before_first))
        return self.fires(
            share / NEAR,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="medium",
            suggestions=[change],
        )
