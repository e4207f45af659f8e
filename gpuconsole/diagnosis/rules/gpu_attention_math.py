"""gpu.attention_math: attention is computed by the plain formula, where one fused kernel would be
faster."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.rule import Case, Finding, Rule, high_if, percent

LEFT = (0.1, 1 / 3)
"""Time of a fused kernel over the time of the plain formula: "3-10x faster than a standard
attention implementation" (FlashAttention-2, A100, 512 to 16k tokens)."""
CERTAIN = 0.20
"""The bytes are counted and the bandwidth is the datasheet's, so the time is a lower bound. From a
fifth of the step on, the cause is beyond doubt."""


class GpuAttentionMath(Rule):
    id = "gpu.attention_math"
    title = "Attention is not fused"
    clear_title = "Attention costs no avoidable time"
    thresholds = (passes.GAIN,)
    knobs = ("attention",)
    reads = (
        "attention.by_torch", "forward_ratio", "loss_ratio", "backward_ratio",
        "probe.attention_sdpa_speedup", "probe.attention_sdpa_spread", "attention.scores_bytes",
        "hw.memory_bytes_per_s", "step_s", "is_gpu",
    )  # fmt: skip
    text = """Written out, softmax(q k^T / sqrt d) v stores a T x T matrix of scores per head
several times in a pass, and keeps the matrix for the backward pass. A fused kernel (FlashAttention
and similar, behind torch's scaled_dot_product_attention) works on tiles and stores no scores.
Where the setting `attention` is `math`, probe P5 runs the same pass both ways, alternately. Longer
sequences gain more (on a CPU 1.2x at 256 tokens, 3x at 1024). In a user's own job on a GPU, the
agent sees the operators of one step. Attention is a product of matrices, a softmax over the scores,
and a product with the result of the softmax. The agent counts the bytes of the scores that all
operators of the step read and write. These bytes over the bandwidth of the memory are the least
time that the operators take. A model that calls scaled_dot_product_attention shows no such
operators, unless torch finds no fused kernel for its inputs. The agent does not see the operators
of a compiled model. What helps: F.scaled_dot_product_attention; nn.MultiheadAttention with
need_weights=False; attn_implementation="sdpa" in Hugging Face's models; flex_attention where the
program changes the scores in another way than by a mask or an added bias."""
    ignore = "The program uses the attention weights themselves."

    def judge(self, case: Case) -> Finding:
        compute = passes.compute_ratio(case)
        if "attention" not in case.knobs:
            return self._seen(case)
        if compute < passes.GAIN or case.knobs.get("attention") != "math":
            return self.clear(
                summary="attention runs as one fused kernel, or takes too little of the step"
            )
        fused = passes.Swap(case, "attention_sdpa")
        recoverable, evidence = fused.saves, fused.evidence
        level = recoverable / passes.GAIN
        if recoverable < passes.GAIN:
            return self.clear(min(level, 0.99), evidence)
        summary = (
            f"the same pass runs {fused.speedup:.2f}x as fast with the fused kernel; now every"
            " score is written to memory and read again"
        )
        why = (
            "one kernel keeps the scores on the chip; the activations of attention shrink from T x"
            " T to T x d"
        )
        code = (
            "F.scaled_dot_product_attention(q, k, v, is_causal=True)  # is_causal only where the"
            " mask is causal: not in BERT or ViT"
        )
        change = case.suggest({"attention": "sdpa"}, fused.predicted, why, code)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=fused.confidence,
            suggestions=[change],
        )

    def _seen(self, case: Case) -> Finding:
        """The conclusion about a user's own job. It follows from the operators that the agent has
        seen."""
        share = passes.attention_claim(case)
        if not share:
            return self.clear(summary="no attention was seen that writes its scores to memory")
        recoverable = share * (1 - sum(LEFT) / 2)
        level = recoverable / passes.GAIN
        evidence = case.evidence("attention.scores_bytes", "hw.memory_bytes_per_s", "step_s")
        if level < 1:
            return self.clear(level, evidence)
        place = case.place("attention.scores_bytes")
        where = f" at {place}" if place is not None else ""
        moves = (
            f"{case.value('attention.scores_bytes') / 1e9:.3g} GB of scores go through the memory"
            f" of the GPU in a step, at least {percent(share)} of its time"
        )
        if case.get("attention.by_torch", 0.0):
            summary = (
                f"scaled_dot_product_attention{where} runs the plain formula, because no fused"
                f" kernel takes its inputs: {moves}. Within"
                " torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch says why"
            )
        else:
            summary = (
                f"attention is written out{where}: {moves}. scaled_dot_product_attention keeps the"
                " scores on the chip"
                " (nn.MultiheadAttention: need_weights=False; Hugging Face:"
                ' attn_implementation="sdpa")'
            )
        return self.fires(
            level, evidence, summary, recoverable=recoverable, confidence=high_if(share >= CERTAIN)
        )
