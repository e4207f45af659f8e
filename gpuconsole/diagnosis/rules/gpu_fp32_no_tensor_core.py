"""gpu.fp32_no_tensor_core: matrix products in fp32 where the device has faster units for 16 bits."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _gpu, _swap
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding, Suggestion

COMPUTE = Threshold("compute", 0.50, "ratio", "forward and backward must be half of the step for their precision to matter")
ACTIVE = Threshold("tensor_cores", 0.05, "ratio", "above 5 % of kernel time tensor cores are in use already (TF32 by default, say)")
BF16_CODE = "with torch.autocast(device_type, dtype=torch.bfloat16): loss = model(batch)"
TF32_CODE = 'torch.set_float32_matmul_precision("high")'


class GpuFp32NoTensorCore(Rule):
    id = "gpu.fp32_no_tensor_core"
    title = "Matrix products run in fp32 instead of on tensor cores"
    clear_title = "The precision costs no avoidable time"
    thresholds = (COMPUTE, ACTIVE, _swap.GAIN)
    knobs = ("precision",)
    text = """GPUs since Ampere multiply matrices 7 to 15 times as fast in bf16 as in fp32, on tensor cores that plain fp32 never touches; some
CPUs (AVX512-BF16, AMX) have such units too. Probe P5 runs the present pass in bf16 (and on a GPU in TF32) in turn with the
present one: small products may gain nothing. Where a device only emulates bf16 the rule is silent. On a CPU it is a note: there
is no tensor core to leave idle, and fp32 is what most CPU training wants."""

    def check(self, case: Case) -> Finding:
        compute, on_gpu = _gpu.compute_ratio(case), _gpu.on_gpu(case)
        if case.knobs.get("precision") != "fp32" or compute < COMPUTE.value:
            return self.clear(0.0, summary="the precision is lower already, or matters little to the step")
        if on_gpu and case.get("profile.tensor_core_ratio", 0.0) >= ACTIVE.value:
            return self.clear(0.0, (case.evidence("profile.tensor_core_ratio", ACTIVE.value),))
        if case.value("probe.precision_bf16_native") <= 0:
            return self.clear(0.0, (case.evidence("probe.precision_bf16_native"),), "this device has no bf16 instructions")
        faster, recoverable = case.value("probe.precision_bf16_speedup"), _swap.saves(case, "precision_bf16")
        evidence = (*_swap.evidence(case, "precision_bf16"), case.evidence("probe.precision_bf16_native"))
        level = recoverable / _swap.GAIN.value
        if recoverable < _swap.GAIN.value:
            return self.clear(max(0.0, min(level, 0.99)), evidence)
        where = "tensor cores" if on_gpu else "this CPU's bf16 instructions"
        return self.fires(
            f"the same pass in bf16 runs {faster:.2f}x as fast, on {where}; whether 16 bits suffice is for the loss to say",
            recoverable=recoverable if on_gpu else 0.0,
            confidence=_swap.confidence(case, "precision_bf16"),
            evidence=evidence,
            suggestions=[
                _suggestion(case, "bf16", "autocast: products in bf16, sums and weights in fp32", BF16_CODE),
                _suggestion(case, "tf32", "fp32 with products of 10 bits of mantissa: the smaller step", TF32_CODE),
            ],
            level=level,
            note=not on_gpu,
            title="" if on_gpu else "Matrix products run in fp32 instead of with bf16 instructions",
        )


def _suggestion(case: Case, precision: str, why: str, code: str) -> Suggestion | None:
    """With the gain that probe P5 measured for it; None where it measured none."""
    if case.get(f"probe.precision_{precision}_speedup", 1.0) <= 1.0:
        return None
    return suggest(case, {"precision": precision}, _swap.predicted(case, f"precision_{precision}"), why, code)
