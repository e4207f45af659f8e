"""serve.token_budget_small: prompts are split into pieces so small that most of an iteration is
other work."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent

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


class ServeTokenBudgetSmall(Rule):
    id = "serve.token_budget_small"
    title = "Prompts are split into too many pieces"
    clear_title = "Prompts are not split into too many pieces"
    subject = "serving"
    thresholds = (PIECES, IDLE, PREFILL)
    knobs = ("max_num_batched_tokens",)
    reads = (
        "client.prompt_tokens", "client.ttft_s", "server.prefill_s", "server.decode_s",
        "mfu_ratio", "client.chunk_gap_p99_s", "client.chunk_gap_p50_s",
    )  # fmt: skip
    text = """The opposite of serve.prefill_stalls_decode, on the same setting. Each iteration has a
fixed cost: weights are read, kernels started, answers sent. A prompt in many pieces pays that cost
many times before its first token. While the FLOP/s are mostly unused and the tokens of other
requests come evenly, max_num_batched_tokens may grow; gaps between tokens then grow too. The vLLM
documentation recommends more than 8192 for throughput and 2048 for better inter-token latency."""

    def judge(self, case: Case) -> Finding:
        prompt, budget = (
            case.value("client.prompt_tokens"),
            int(case.setting("max_num_batched_tokens")),
        )
        pieces = prompt / max(1, budget)
        evidence = case.evidence("client.prompt_tokens", "client.ttft_s")
        if pieces < PIECES or not case.knobs.get("enable_chunked_prefill", True):
            return self.clear(min(0.59, pieces / PIECES), evidence)
        prefill, decode = case.value("server.prefill_s"), case.value("server.decode_s")
        share, used = prefill / max(1e-9, prefill + decode), case.value("mfu_ratio")
        evidence += case.evidence("server.prefill_s", "server.decode_s", ("mfu_ratio", IDLE))
        if used >= IDLE or share < PREFILL:
            return self.clear(min(0.59, IDLE / max(used, 1e-9), share / PREFILL), evidence)
        if serving.spike(case) >= serving.SPIKE:
            return self.clear(
                0.5,
                evidence,
                "tokens of other requests already stall: larger pieces would stall them longer",
            )
        larger = min(round(prompt), 4 * budget)
        summary = (
            f"{prompt:.0f} prompt tokens take {pieces:.0f} iterations of {budget} and"
            f" {percent(share)} of a request's time, at {percent(used)} of the FLOP/s, while the"
            " tokens of other requests come evenly"
        )
        why = (
            "larger pieces: an earlier first token, and longer gaps between the tokens of running"
            " requests"
        )
        change = serving.restart(case, {"max_num_batched_tokens": larger}, None, why)
        recoverable = share * (1 - used / IDLE) * 0.5
        return self.fires(
            pieces / PIECES,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="medium",
            suggestions=[change],
        )
