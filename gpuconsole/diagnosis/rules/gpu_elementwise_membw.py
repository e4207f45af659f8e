"""gpu.elementwise_membw: elementwise operations run one by one and move the same values through
memory again and again."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.rule import (
    Case,
    Evidence,
    Finding,
    Interval,
    Rule,
    Threshold,
    high_if,
    percent,
)

SHARE = Threshold(
    "share_of_step",
    0.35,
    "ratio",
    "healthy GPTs and convnets spend 10-15 % of the step in such operations, an unfused chain 85 %",
)
CLASSES = ("elementwise", "normalization", "reduction")
"""Classes of operations that torch.compile fuses."""
ACHIEVED = 0.6
"""Operations that are limited by memory use 60 % of its bandwidth or more while they run (survey
T21). If they took SHARE of the step, the memory would be active for at least SHARE times this."""
BOUND = Threshold(
    "dram_active",
    0.60,
    "ratio",
    "60 % of the memory bandwidth: memory is the limit of the step (survey T21)",
)
NO_PRODUCTS = Threshold(
    "tensor_active",
    0.10,
    "ratio",
    "below 10 %, products are no large part: GPT-2 small in bf16, uncompiled, has 20 %",
)
OF_PRODUCTS = 0.30
OF_CHAINS = 0.85
"""Memory bandwidth in use while products run, and while such operations run. A mean of 55 % then is
a share of 45 %, as measured for GPT-2 small."""
LEFT = (2 / 9, 0.5)
"""Time of a fused chain over the time of its operations one by one. n operations read n + 1 values
and write n; a fused chain reads and writes once: 2/5 for two operations, 2/9 for four. Arithmetic
(exp, division) remains. Measured on a CPU: 0.17 for cheap operations, 0.36 with SiLU and norms."""


WHY = (
    "one kernel replaces many and reads and writes once; compiling takes some seconds at the start"
)


class GpuElementwiseMembw(Rule):
    id = "gpu.elementwise_membw"
    title = "Elementwise operations are not fused"
    clear_title = "Elementwise operations take little time"
    thresholds = (SHARE, BOUND, NO_PRODUCTS)
    knobs = ("torch_compile",)
    reads = (
        "forward_ratio", "loss_ratio", "backward_ratio", "profile.elementwise_ratio",
        "profile.normalization_ratio", "profile.reduction_ratio", "optimizer_ratio",
        "attention.scores_bytes", "hw.memory_bytes_per_s", "step_s", "is_gpu",
        "profile.elementwise_bytes_per_s", "embedding.rows_touched_ratio", "gpu.dram_active_ratio",
        "gpu.tensor_active_ratio", "embedding.table_bytes", "embedding.trained_ratio",
        "model.embeddings", "recomputed.flops_ratio",
    )  # fmt: skip
    text = """A short profiler window measures which classes of kernels a pass consists of.
Elementwise operations, norms and reductions do a few FLOPs per value, so they take the time of
their memory traffic; run one by one, each reads the same values again. Utilisation reads 100 %
nevertheless. torch.compile generates one kernel for such a chain. The gain is small where matrix
products dominate, and may be a loss on a CPU: the trial decides. Without a window, the activity of
the memory and of the tensor cores (GPM, from Hopper on) rules this cause out or names it. The
gradient of an embedding table is also filled elementwise; the rule subtracts the time that
gpu.dense_embedding_grad claims, and that of operators on the scores of attention, which
gpu.attention_math claims."""

    def judge(self, case: Case) -> Finding:
        compute = passes.compute_ratio(case)
        if case.knobs.get("torch_compile") != "off":
            return self.clear(summary="the model is compiled already, or cannot be compiled")
        if not case.has(f"profile.{CLASSES[0]}_ratio") and case.has("gpu.dram_active_ratio"):
            traffic = case.value("gpu.dram_active_ratio") - passes.attention_claim(case)
            level = traffic / (SHARE * ACHIEVED)
            if level < 1:
                evidence = case.evidence(
                    ("gpu.dram_active_ratio", SHARE * ACHIEVED)
                ) + case.if_known("attention.scores_bytes")
                other = " other" if case.get("attention.scores_bytes", 0.0) else ""
                return self.clear(
                    max(0.0, level), evidence, f"the memory has too little{other} traffic for that"
                )
            if case.get("gpu.tensor_active_ratio", 1.0) < NO_PRODUCTS and traffic >= BOUND:
                return self._from_the_memory(case, compute, traffic)
        classes = case.evidence(*(f"profile.{name}_ratio" for name in CLASSES))
        share = (
            compute * sum(part.value for part in classes)
            - passes.embedding_claim(case)
            - passes.attention_claim(case)
        )
        source = "their shares of a pass, times the share of the passes in the step"
        whole = Evidence(
            "elementwise, normalization, reduction", share, "ratio", SHARE.value, source
        )
        evidence = (whole, *classes, *case.if_known("profile.elementwise_bytes_per_s"))
        level = share / SHARE
        if level < 1:
            return self.clear(max(0.0, level), evidence)
        gain = _gain(share)
        summary = (
            f"operations with little arithmetic take {percent(share)} of the step; each of them"
            " reads from memory and writes to memory"
        )
        change = case.suggest(
            {"torch_compile": "default"}, gain, WHY, "model = torch.compile(model)"
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=1 - 1 / gain.middle,
            confidence=high_if(share >= 0.5),
            suggestions=[change],
        )

    def _from_the_memory(self, case: Case, compute: float, traffic: float) -> Finding:
        """The conclusion without a profile: memory is the limit, and tensor cores have hardly any
        work. `traffic`: the memory's activity without the scores of attention."""
        dram = case.value("gpu.dram_active_ratio")
        evidence = case.evidence(
            ("gpu.dram_active_ratio", BOUND),
            ("gpu.tensor_active_ratio", NO_PRODUCTS),
            "forward_ratio",
            "backward_ratio",
        )
        share = compute * min(1.0, (traffic - OF_PRODUCTS) / (OF_CHAINS - OF_PRODUCTS))
        level = share / SHARE
        if level < 1:
            return self.clear(level, evidence)
        summary = (
            f"the memory is active for {percent(dram)} of the time and tensor cores for"
            f" {percent(case.value('gpu.tensor_active_ratio'))}: operations with little arithmetic"
            f" take about {percent(share)} of the step (a profiler window shows which, key f)"
        )
        gain = _gain(share)
        change = case.suggest(
            {"torch_compile": "default"}, gain, WHY, "model = torch.compile(model)"
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=1 - 1 / gain.middle,
            confidence="medium",
            suggestions=[change],
        )


def _gain(share: float) -> Interval:
    """The speed-up if a chain of operations that takes `share` of the step is fused."""
    return Interval(1 / (1 - share * (1 - LEFT[1])), 1 / (1 - share * (1 - LEFT[0])))
