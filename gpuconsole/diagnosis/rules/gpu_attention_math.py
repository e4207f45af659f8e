"""gpu.attention_math: attention as the plain formula, where one fused kernel would do."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, Threshold, clear, fires, some, speedup_interval, suggest
from gpuconsole.model.finding import Finding

ID = "gpu.attention_math"
TITLE = "Attention writes all its scores to memory"
GAIN = Threshold("recoverable", 0.05, "ratio", "a probe's gain below 5 % of the step counts as none, as in gpu.compute_bound_healthy")
LEAST_ERROR = 0.15
"""Of a predicted gain, relative: passes that a probe times are not quite steps."""


def check(case: Case) -> Finding:
    compute = case.value("forward_ratio") + case.value("backward_ratio")
    if case.knobs.get("attention") != "math":
        return clear(ID, TITLE, 0.0, summary="attention runs as one fused kernel, or this workload has none")
    faster, spread = case.value("probe.attention_sdpa_speedup"), case.get("probe.attention_sdpa_spread", 0.1)
    recoverable = compute * (1 - 1 / faster)
    evidence = (
        case.evidence("probe.attention_sdpa_speedup", 1 / (1 - min(0.9, GAIN.value / max(compute, 0.1)))),
        case.evidence("probe.attention_sdpa_spread"),
        case.evidence("forward_ratio"),
        case.evidence("backward_ratio"),
    )
    level = recoverable / GAIN.value
    if recoverable < GAIN.value:
        return clear(ID, TITLE, min(level, 0.99), evidence)
    return fires(
        ID,
        TITLE,
        f"the same pass with the fused kernel runs {faster:.2f}x as fast: every score is written to memory and read again",
        recoverable=recoverable,
        confidence="high" if compute * (1 - 1 / max(1.0, faster - spread)) >= GAIN.value else "medium",
        evidence=evidence,
        suggestions=some(
            suggest(
                case,
                {"attention": "sdpa"},
                speedup_interval(1 / (1 - recoverable), max(LEAST_ERROR, min(1.0, spread / (faster - 1)))),
                "one kernel that keeps the scores on the chip; the activations of attention shrink from T x T to T x d",
                "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
            )
        ),
        level=level,
    )


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("forward_ratio", "backward_ratio", "probe.attention_sdpa_speedup", "probe.attention_sdpa_spread"),
    thresholds=(GAIN,),
    text="""softmax(q k^T / sqrt d) v, written out, puts a T x T matrix of scores per head into memory several times in a pass, and keeps
it for the backward pass. A fused kernel (FlashAttention and its kin, behind torch's scaled_dot_product_attention) works on
tiles and writes none of them. The rule looks only where attention is `math`, and it does not guess: probe P5 runs the same
pass both ways, in turn. The longer the sequence, the larger the gain (on a CPU 1.2x at 256 tokens, 3x at 1024).""",
    check=check,
)
