"""serve.prefill_stalls_decode: those who are being answered stand still while somebody else's long prompt is read."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, Threshold, clear, fires, knob_int, some, suggest
from gpuconsole.diagnosis.rules import _serving
from gpuconsole.model.finding import Finding

ID = "serve.prefill_stalls_decode"
TITLE = "Long prompts stall the others' tokens"
SPIKE = Threshold("spike", 3.0, "ratio", "gaps between chunks: p99 three times p50 (tensward 2/3; DIAGNOSIS I06)")
EVENED_OUT = 0.3
"""Of the stalls, what smaller pieces take out of the latency of a token; the prompts' own work stays."""
LONG = Threshold("long", 32.0, "ratio", "prompts of 32 times the batch: an iteration that takes one in is that much more work")


def check(case: Case) -> Finding:
    spike = case.value("client.chunk_gap_p99_s") / max(1e-9, case.value("client.chunk_gap_p50_s"))
    budget, prompt = knob_int(case.knobs["max_num_batched_tokens"]), case.value("client.prompt_tokens")
    running = max(1.0, case.value("server.requests_running"))
    piece = min(float(budget), prompt)
    evidence = (
        case.evidence("client.chunk_gap_p99_s"),
        case.evidence("client.chunk_gap_p50_s"),
        case.evidence("client.prompt_tokens"),
        case.evidence("server.requests_running"),
    )
    if running < 2 or piece < LONG.value * running:
        return clear(ID, TITLE, 0.0, evidence, "prompts are short beside the batch, or nobody else decodes")
    if spike < SPIKE.value:
        return clear(ID, TITLE, spike / SPIKE.value, evidence)
    smaller = max(64, int(piece // 4))
    return fires(
        ID,
        TITLE,
        f"one gap in a hundred is {spike:.1f} times the usual {case.value('client.chunk_gap_p50_s') * 1e3:.1f} ms; an iteration takes in up to "
        f"{piece:.0f} prompt tokens beside {running:.0f} that decode",
        recoverable=EVENED_OUT * _serving.stalled_ratio(case),
        confidence="medium",
        evidence=evidence,
        suggestions=some(
            suggest(
                case,
                {"max_num_batched_tokens": smaller},
                None,
                "smaller pieces of prompt per iteration: steadier tokens, a later first one",
                f"vllm serve ... --max-num-batched-tokens {smaller}",
            )
        ),
        level=spike / SPIKE.value,
    )


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("client.chunk_gap_p99_s", "client.chunk_gap_p50_s", "client.prompt_tokens", "server.requests_running"),
    thresholds=(SPIKE, LONG),
    knobs=("max_num_batched_tokens",),
    text="""An iteration that takes in a piece of a prompt lasts as long as that piece needs, and every sequence that decodes in it waits. Smaller
max_num_batched_tokens cuts prompts into smaller pieces: gaps between tokens become even, the first token of the long prompt comes later, and
throughput falls a little. vLLM's documentation: 2048 for better ITL, above 8192 for throughput.""",
    check=check,
    serving=True,
)
