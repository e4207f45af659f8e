"""serve.prefill_stalls_decode: running requests pause while the long prompt of another request is
read."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Suggestion, Threshold

EVENED_OUT = 0.3
"""Share of the stalls that smaller pieces remove from the latency of a token; the work for the
prompts remains."""
TAIL = 0.1
"""What a stall of a token in a hundred costs at least, where only the buckets of a page are
known."""
LONG = Threshold(
    "long",
    32.0,
    "ratio",
    "prompts 32 times as long as the batch: an iteration with a prompt is that much more work",
)
SMALLEST = Threshold(
    "smallest",
    512.0,
    "tokens",
    (
        "vLLM's default of chunked prefill for the best time between tokens (its documentation of"
        " 0.6); smaller pieces read the weights more often than the prompt is worth"
    ),
)
SMALLEST_EMBEDDED = 64
"""The same for the embedded server, whose models are a thousand times smaller."""


WHOLE_PROMPTS = ("tensorrt-llm", "triton")
"""Without chunked prefill these engines refuse a prompt that is longer than the budget."""


class ServePrefillStallsDecode(Rule):
    id = "serve.prefill_stalls_decode"
    title = "Long prompts delay the tokens of other requests"
    clear_title = "Prompts do not delay the tokens of other requests"
    subject = "serving"
    once = ("watch.prefill_stalls_decode",)
    thresholds = (serving.SPIKE, LONG, SMALLEST, serving.BUSY_HOST)
    knobs = ("max_num_batched_tokens",)
    reads = (
        "client.chunk_gap_p99_s", "client.chunk_gap_p50_s", "client.chunk_gap_s",
        "server.itl_p99_lower_s", "server.itl_p50_upper_s", "client.prompt_tokens",
        "server.request_prompt_tokens", "server.requests_running", "server.engine_running",
        "server.token_limit", "server.sequence_limit", "host.run_queue_delay_ratio",
    )  # fmt: skip
    text = """An iteration that takes a piece of a prompt lasts as long as that piece needs, and
every decoding sequence waits for its end. One gap between tokens in a hundred is then several times
the median. The load client measures the gaps; a page shows them in the histogram of the time
between tokens, where the rule compares the lower bound of the bucket of the 99th percentile with
the upper bound of that of the median, so a wide bucket never makes a stall. A smaller token budget
(max_num_batched_tokens) cuts prompts into smaller pieces: the gaps become even, the first token of
the long prompt comes later, and throughput falls a little. The vLLM documentation recommends 2048
for better ITL and more than 8192 for throughput. Where the host is busy, and tasks wait for a core,
long gaps have that cause."""

    def judge(self, case: Case) -> Finding:
        median, tail = serving.gap_signals(case)
        prompt = serving.prompt_tokens(case)
        evidence = case.evidence(tail, median, "server.requests_running")
        evidence += case.if_known(
            "client.prompt_tokens", "server.request_prompt_tokens", "host.run_queue_delay_ratio"
        )
        running = max(1.0, serving.running_of_engine(case))
        budget = serving.token_budget(case)
        piece = min(budget or prompt, prompt)
        if running < 2 or piece < LONG * running:
            return self.clear(
                0.0,
                evidence,
                "prompts are short compared with the batch, or no other request decodes",
            )
        spike = serving.spike(case)
        if spike < serving.SPIKE:
            return self.clear(spike / serving.SPIKE, evidence)
        if serving.host_is_busy(case):
            return self.clear(0.5, evidence, "tasks on this machine wait for a core")
        words = (
            f"longer than {case.value(tail) * 1e3:.0f} ms, and half are below"
            f" {case.value(median) * 1e3:.0f} ms"
            if tail in serving.PAGE_GAPS
            else f"{spike:.1f} times the median of {case.value(median) * 1e3:.1f} ms"
        )
        summary = (
            f"one gap between tokens in a hundred is {words}: "
            + (
                f"an iteration takes up to {piece:.0f} prompt tokens"
                if budget
                else f"prompts have {prompt:.0f} tokens on average"
            )
            + f" while {running:.0f} requests decode"
        )
        recoverable = (
            EVENED_OUT * serving.stalled_ratio(case) if case.has("client.chunk_gap_s") else TAIL
        )
        return self.fires(
            spike / serving.SPIKE,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="medium",
            suggestions=[_smaller(case, piece) if budget else None],
        )


def _smaller(case: Case, piece: float) -> Suggestion | None:
    """A quarter of the present piece of a prompt, and not less than a server can use; None where
    the pieces are as small already."""
    if serving.engine_of(case) in WHOLE_PROMPTS:
        return None
    embedded = serving.engine_of(case) == "embedded"
    # vLLM refuses a budget below its limit of sequences
    least = max(SMALLEST_EMBEDDED if embedded else SMALLEST, case.get("server.sequence_limit", 0.0))
    wanted = int(max(least, piece // 4))
    if wanted >= piece:
        return None
    why = "smaller pieces of prompt per iteration: more even tokens, a later first token"
    return serving.restart(case, {"max_num_batched_tokens": wanted}, None, why)
