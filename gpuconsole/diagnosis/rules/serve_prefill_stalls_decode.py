"""serve.prefill_stalls_decode: running requests pause while the long prompt of another request is
read."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold

EVENED_OUT = 0.3
"""Share of the stalls that smaller pieces remove from the latency of a token; the work for the
prompts remains."""
LONG = Threshold(
    "long",
    32.0,
    "ratio",
    "prompts 32 times as long as the batch: an iteration with a prompt is that much more work",
)


class ServePrefillStallsDecode(Rule):
    id = "serve.prefill_stalls_decode"
    title = "Long prompts delay the tokens of other requests"
    clear_title = "Prompts do not delay the tokens of other requests"
    subject = "serving"
    thresholds = (serving.SPIKE, LONG)
    knobs = ("max_num_batched_tokens",)
    reads = (
        "client.chunk_gap_p99_s", "client.chunk_gap_p50_s", "client.prompt_tokens",
        "server.requests_running", "client.chunk_gap_s",
    )  # fmt: skip
    text = """An iteration that takes a piece of a prompt lasts as long as that piece needs, and
every decoding sequence waits for its end. A smaller max_num_batched_tokens cuts prompts into
smaller pieces. Gaps between tokens become even, the first token of the long prompt comes later, and
throughput falls a little. The vLLM documentation recommends 2048 for better ITL and more than 8192
for throughput."""

    def judge(self, case: Case) -> Finding:
        evidence = case.evidence(
            "client.chunk_gap_p99_s",
            "client.chunk_gap_p50_s",
            "client.prompt_tokens",
            "server.requests_running",
        )
        budget, prompt = (
            int(case.setting("max_num_batched_tokens")),
            case.value("client.prompt_tokens"),
        )
        running = max(1.0, case.value("server.requests_running"))
        piece = min(float(budget), prompt)
        if running < 2 or piece < LONG * running:
            return self.clear(
                0.0,
                evidence,
                "prompts are short compared with the batch, or no other request decodes",
            )
        spike = serving.spike(case)
        if spike < serving.SPIKE:
            return self.clear(spike / serving.SPIKE, evidence)
        smaller = max(64, int(piece // 4))
        summary = (
            f"one gap in a hundred is {spike:.1f} times the median of"
            f" {case.value('client.chunk_gap_p50_s') * 1e3:.1f} ms. An iteration takes up to"
            f" {piece:.0f} prompt tokens while {running:.0f} requests decode"
        )
        why = "smaller pieces of prompt per iteration: more even tokens, a later first token"
        change = serving.restart(case, {"max_num_batched_tokens": smaller}, None, why)
        recoverable = EVENED_OUT * serving.stalled_ratio(case)
        return self.fires(
            spike / serving.SPIKE,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="medium",
            suggestions=[change],
        )
