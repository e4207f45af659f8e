"""gpu.fp32_no_tensor_core: matrix products run in fp32 where the device has faster units for 16 bits."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Suggestion, Threshold, short_of

COMPUTE = Threshold("compute", 0.50, "ratio", "the passes must take half of the step; otherwise their precision matters little")
ACTIVE = Threshold("tensor_cores", 0.05, "ratio", "above 5 % of kernel time, tensor cores are in use already (for example TF32 by default)")
BF16_CODE = "with torch.autocast(device_type, dtype=torch.bfloat16): loss = model(batch)"
TF32_CODE = 'torch.set_float32_matmul_precision("high")'


class GpuFp32NoTensorCore(Rule):
    id = "gpu.fp32_no_tensor_core"
    title = "Matrix products run in fp32 instead of on tensor cores"
    clear_title = "The precision costs no avoidable time"
    thresholds = (COMPUTE, ACTIVE, passes.GAIN)
    knobs = ("precision",)
    reads = (
        "forward_ratio", "backward_ratio", "is_gpu", "profile.tensor_core_ratio", "probe.precision_bf16_native",
        "probe.precision_bf16_speedup", "probe.precision_bf16_spread", "probe.precision_tf32_speedup", "probe.precision_tf32_spread",
    )  # fmt: skip
    text = """GPUs since Ampere multiply matrices 7 to 15 times as fast in bf16 as in fp32, on tensor cores that fp32 does not use. Some CPUs (AVX512-BF16,
AMX) have such units too. Probe P5 runs the present pass and a pass in bf16 (on a GPU also in TF32) alternately, since small products may gain
nothing. The rule is silent where a device only emulates bf16. On a CPU the finding is a note: most CPU training uses fp32 on purpose."""

    def judge(self, case: Case) -> Finding:
        compute, on_gpu = passes.compute_ratio(case), case.on_gpu
        if case.knobs.get("precision") != "fp32" or compute < COMPUTE:
            return self.clear(summary="the precision is already lower than fp32, or the passes take less than half of the step")
        if on_gpu and case.get("profile.tensor_core_ratio", 0.0) >= ACTIVE:
            return self.clear(0.0, case.evidence(("profile.tensor_core_ratio", ACTIVE)))
        if case.value("probe.precision_bf16_native") <= 0:
            return self.clear(0.0, case.evidence("probe.precision_bf16_native"), "this device has no bf16 instructions")
        bf16 = passes.Swap(case, "precision_bf16")
        recoverable = bf16.saves
        evidence = bf16.evidence + case.evidence("probe.precision_bf16_native")
        level = recoverable / passes.GAIN
        if recoverable < passes.GAIN:
            return self.clear(short_of(level), evidence)
        where = "tensor cores" if on_gpu else "this CPU's bf16 instructions"
        summary = f"the same pass in bf16 runs {bf16.speedup:.2f}x as fast on {where}. Check by the loss whether 16 bits are enough"
        changes = [
            _suggestion(case, "bf16", "autocast: products in bf16, sums and weights in fp32", BF16_CODE),
            _suggestion(case, "tf32", "fp32 with products of 10 bits of mantissa: the smaller change", TF32_CODE),
        ]
        if on_gpu:
            return self.fires(level, evidence, summary, recoverable=recoverable, confidence=bf16.confidence, suggestions=changes)
        title = "Matrix products run in fp32 instead of with bf16 instructions"
        return self.note(level, evidence, summary, confidence=bf16.confidence, suggestions=changes, title=title)


def _suggestion(case: Case, precision: str, why: str, code: str) -> Suggestion | None:
    """With the gain that probe P5 measured; None where the precision gains nothing."""
    if case.get(f"probe.precision_{precision}_speedup", 1.0) <= 1.0:
        return None
    return case.suggest({"precision": precision}, passes.Swap(case, f"precision_{precision}").predicted, why, code)
