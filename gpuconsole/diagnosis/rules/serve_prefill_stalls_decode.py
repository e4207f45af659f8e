"""serve.prefill_stalls_decode: those who are being answered stand still while somebody else's long prompt is read."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _serving
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding

EVENED_OUT = 0.3
"""Of the stalls, what smaller pieces take out of the latency of a token; the prompts' own work stays."""
LONG = Threshold("long", 32.0, "ratio", "prompts of 32 times the batch: an iteration that takes one in is that much more work")


class ServePrefillStallsDecode(Rule):
    id = "serve.prefill_stalls_decode"
    title = "Long prompts delay the tokens of other requests"
    clear_title = "Prompts do not delay the tokens of other requests"
    subject = "serving"
    thresholds = (_serving.SPIKE, LONG)
    knobs = ("max_num_batched_tokens",)
    text = """An iteration that takes in a piece of a prompt lasts as long as that piece needs, and every sequence that decodes in it waits. Smaller
max_num_batched_tokens cuts prompts into smaller pieces: gaps between tokens become even, the first token of the long prompt comes later, and
throughput falls a little. vLLM's documentation: 2048 for better ITL, above 8192 for throughput."""

    def check(self, case: Case) -> Finding:
        evidence = (
            case.evidence("client.chunk_gap_p99_s"),
            case.evidence("client.chunk_gap_p50_s"),
            case.evidence("client.prompt_tokens"),
            case.evidence("server.requests_running"),
        )
        budget, prompt = int(case.knobs["max_num_batched_tokens"]), case.value("client.prompt_tokens")
        running = max(1.0, case.value("server.requests_running"))
        piece = min(float(budget), prompt)
        if running < 2 or piece < LONG.value * running:
            return self.clear(0.0, evidence, "prompts are short beside the batch, or nobody else decodes")
        spike = _serving.spike(case)
        if spike < _serving.SPIKE.value:
            return self.clear(spike / _serving.SPIKE.value, evidence)
        smaller = max(64, int(piece // 4))
        return self.fires(
            f"one gap in a hundred is {spike:.1f} times the usual {case.value('client.chunk_gap_p50_s') * 1e3:.1f} ms; an iteration takes in up to "
            f"{piece:.0f} prompt tokens beside {running:.0f} that decode",
            recoverable=EVENED_OUT * _serving.stalled_ratio(case),
            confidence="medium",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"max_num_batched_tokens": smaller},
                    None,
                    "smaller pieces of prompt per iteration: steadier tokens, a later first one",
                    f"vllm serve ... --max-num-batched-tokens {smaller}",
                )
            ],
            level=spike / _serving.SPIKE.value,
        )
