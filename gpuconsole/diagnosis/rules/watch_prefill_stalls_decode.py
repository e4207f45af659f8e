"""watch.prefill_stalls_decode: tokens of running requests pause while the long prompts of other
requests are read."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold

LONG = Threshold(
    "long", 32.0, "ratio", "prompts 32 times as long as the batch (see serve.prefill_stalls_decode)"
)
SHARE = 0.1
"""What a stall of a token in a hundred costs at least: the mean is known, the rest of the
distribution only by its buckets."""


class WatchPrefillStallsDecode(Rule):
    id = "watch.prefill_stalls_decode"
    title = "Long prompts delay the tokens of other requests"
    clear_title = "Prompts do not delay the tokens of other requests"
    subject = "watched"
    thresholds = (serving.SPIKE, LONG)
    knobs = ("max_num_batched_tokens",)
    reads = (
        "server.itl_p99_lower_s",
        "server.itl_p50_upper_s",
        "server.request_prompt_tokens",
        "server.requests_running",
        "server.token_limit",
    )
    text = """An iteration that takes a piece of a prompt lasts as long as that piece needs, and
every decoding sequence waits for its end. From outside this shows in the histogram of the time
between tokens: one gap in a hundred is several times the median. The rule compares the lower bound
of the bucket of the 99th percentile with the upper bound of that of the median, so a wide bucket
never makes a stall. A smaller token budget cuts prompts into smaller pieces: the gaps become even,
the first token comes later, and throughput falls a little."""

    def judge(self, case: Case) -> Finding:
        usual, slow = case.value("server.itl_p50_upper_s"), case.value("server.itl_p99_lower_s")
        prompt, running = (
            case.value("server.request_prompt_tokens"),
            max(1.0, case.value("server.requests_running")),
        )
        evidence = case.evidence(
            "server.itl_p99_lower_s",
            "server.itl_p50_upper_s",
            "server.request_prompt_tokens",
            "server.requests_running",
        )
        budget = case.get("server.token_limit", prompt)
        piece, spike = min(budget, prompt), slow / max(1e-9, usual)
        if running < 2 or piece < LONG * running:
            return self.clear(
                0.0,
                evidence,
                "prompts are short compared with the batch, or no other request decodes",
            )
        if spike < serving.SPIKE:
            return self.clear(spike / serving.SPIKE, evidence)
        summary = (
            f"one gap between tokens in a hundred is longer than {slow * 1e3:.0f} ms, and half are"
            f" below {usual * 1e3:.0f} ms: an iteration takes up to {piece:.0f} prompt tokens while"
            f" {running:.0f} requests decode"
        )
        why = "smaller pieces of prompt per iteration: more even tokens, a later first token"
        change = serving.restart(
            case, {"max_num_batched_tokens": max(64, int(piece // 4))}, None, why
        )
        return self.fires(
            spike / serving.SPIKE,
            evidence,
            summary,
            recoverable=SHARE,
            confidence="medium",
            suggestions=[change],
        )
