"""gpu.attention_math: attention is computed by the plain formula, where one fused kernel would be faster."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.rule import Case, Finding, Rule


class GpuAttentionMath(Rule):
    id = "gpu.attention_math"
    title = "Attention is not fused"
    clear_title = "Attention costs no avoidable time"
    thresholds = (passes.GAIN,)
    knobs = ("attention",)
    reads = ("forward_ratio", "loss_ratio", "backward_ratio", "probe.attention_sdpa_speedup", "probe.attention_sdpa_spread")
    text = """Written out, softmax(q k^T / sqrt d) v stores a T x T matrix of scores per head several times in a pass, and keeps the matrix for the
backward pass. A fused kernel (FlashAttention and similar, behind torch's scaled_dot_product_attention) works on tiles and stores no scores.
The rule applies only where attention is `math`. It does not guess: probe P5 runs the same pass both ways, alternately. Longer sequences gain
more (on a CPU 1.2x at 256 tokens, 3x at 1024)."""

    def judge(self, case: Case) -> Finding:
        if passes.compute_ratio(case) < passes.GAIN or case.knobs.get("attention") != "math":
            return self.clear(summary="attention runs as one fused kernel, or takes too little of the step")
        fused = passes.Swap(case, "attention_sdpa")
        recoverable, evidence = fused.saves, fused.evidence
        level = recoverable / passes.GAIN
        if recoverable < passes.GAIN:
            return self.clear(min(level, 0.99), evidence)
        summary = (
            f"the same pass runs {fused.speedup:.2f}x as fast with the fused kernel; now every score is written to memory and read again"
        )
        why = "one kernel keeps the scores on the chip; the activations of attention shrink from T x T to T x d"
        code = "F.scaled_dot_product_attention(q, k, v, is_causal=True)  # is_causal only where the mask is causal: not in BERT or ViT"
        change = case.suggest({"attention": "sdpa"}, fused.predicted, why, code)
        return self.fires(level, evidence, summary, recoverable=recoverable, confidence=fused.confidence, suggestions=[change])
