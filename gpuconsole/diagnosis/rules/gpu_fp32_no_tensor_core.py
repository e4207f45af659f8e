"""gpu.fp32_no_tensor_core: matrix products run in fp32 where the device has faster units for 16 bits."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Suggestion, Threshold, short_of
from gpuconsole.diagnosis.rules import _gpu, _swap

COMPUTE = Threshold("compute", 0.50, "ratio", "the passes must take half of the step; otherwise their precision matters little")
ACTIVE = Threshold("tensor_cores", 0.05, "ratio", "above 5 % of kernel time, tensor cores are in use already (for example TF32 by default)")
BF16_CODE = "with torch.autocast(device_type, dtype=torch.bfloat16): loss = model(batch)"
TF32_CODE = 'torch.set_float32_matmul_precision("high")'


class GpuFp32NoTensorCore(Rule):
    id = "gpu.fp32_no_tensor_core"
    title = "Matrix products run in fp32 instead of on tensor cores"
    clear_title = "The precision costs no avoidable time"
    thresholds = (COMPUTE, ACTIVE, _swap.GAIN)
    knobs = ("precision",)
    reads = (
        "forward_ratio", "backward_ratio", "is_gpu", "profile.tensor_core_ratio", "probe.precision_bf16_native",
        "probe.precision_bf16_speedup", "probe.precision_bf16_spread", "probe.precision_tf32_speedup", "probe.precision_tf32_spread",
    )  # fmt: skip
    text = """GPUs since Ampere multiply matrices 7 to 15 times as fast in bf16 as in fp32, on tensor cores that fp32 does not use. Some CPUs (AVX512-BF16,
AMX) have such units too. Probe P5 runs the present pass and a pass in bf16 (on a GPU also in TF32) alternately, since small products may gain
nothing. The rule is silent where a device only emulates bf16. On a CPU the finding is a note: most CPU training uses fp32 on purpose."""

    def judge(self, case: Case) -> Finding:
        compute, on_gpu = _gpu.compute_ratio(case), _gpu.on_gpu(case)
        if case.knobs.get("precision") != "fp32" or compute < COMPUTE:
            return self.clear(summary="the precision is already lower than fp32, or the passes take less than half of the step")
        if on_gpu and case.get("profile.tensor_core_ratio", 0.0) >= ACTIVE:
            return self.clear(0.0, case.evidence(("profile.tensor_core_ratio", ACTIVE)))
        if case.value("probe.precision_bf16_native") <= 0:
            return self.clear(0.0, case.evidence("probe.precision_bf16_native"), "this device has no bf16 instructions")
        faster, recoverable = case.value("probe.precision_bf16_speedup"), _swap.saves(case, "precision_bf16")
        evidence = _swap.evidence(case, "precision_bf16") + case.evidence("probe.precision_bf16_native")
        level = recoverable / _swap.GAIN
        if recoverable < _swap.GAIN:
            return self.clear(short_of(level), evidence)
        where = "tensor cores" if on_gpu else "this CPU's bf16 instructions"
        summary = f"the same pass in bf16 runs {faster:.2f}x as fast on {where}. Check by the loss whether 16 bits are enough"
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable if on_gpu else 0.0,
            confidence=_swap.confidence(case, "precision_bf16"),
            note=not on_gpu,
            title="" if on_gpu else "Matrix products run in fp32 instead of with bf16 instructions",
            suggestions=[
                _suggestion(case, "bf16", "autocast: products in bf16, sums and weights in fp32", BF16_CODE),
                _suggestion(case, "tf32", "fp32 with products of 10 bits of mantissa: the smaller change", TF32_CODE),
            ],
        )


def _suggestion(case: Case, precision: str, why: str, code: str) -> Suggestion | None:
    """With the gain that probe P5 measured; None where the precision gains nothing."""
    if case.get(f"probe.precision_{precision}_speedup", 1.0) <= 1.0:
        return None
    return case.suggest({"precision": precision}, _swap.predicted(case, f"precision_{precision}"), why, code)
