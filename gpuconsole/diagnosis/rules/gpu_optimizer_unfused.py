"""gpu.optimizer_unfused: the optimizer updates the parameters tensor by tensor, operation by operation."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Rule, Threshold, speedup_interval, suggest
from gpuconsole.diagnosis.rules import _claims, _swap
from gpuconsole.model.finding import Finding
from gpuconsole.model.text import percent

SHARE = Threshold("optimizer", 0.10, "ratio", "below 10 % of the step no kernel can gain much")
ERROR = 0.2
"""Relative error of the predicted gain: copies of the parameters may be in caches more often than the parameters."""


class GpuOptimizerUnfused(Rule):
    id = "gpu.optimizer_unfused"
    title = "The optimizer is not fused"
    clear_title = "The optimizer costs no avoidable time"
    thresholds = (SHARE, _swap.GAIN)
    knobs = ("optim",)
    reads = ("optimizer_ratio", "probe.optim_present_step_s", "probe.optim_fused_step_s")
    text = """AdamW reads the parameter, the gradient and two moments, and writes three of them: 28 bytes per parameter in fp32. An update that runs one tensor
and one operation at a time moves several times these bytes and launches a kernel for each operation. `foreach` saves launches; `fused`
saves the traffic too, also on a CPU. Where the optimizer takes 10 % of the step or more, probe P5 times both on copies of the parameters.
The share is largest with many parameters and few tokens per step. Gradient accumulation also helps: the update runs less often."""

    def check(self, case: Case) -> Finding:
        share = case.value("optimizer_ratio")
        if case.knobs.get("optim") not in _claims.UNFUSED or share < SHARE.value:
            return self.clear(0.0, (case.evidence("optimizer_ratio", SHARE.value),))
        present, fused = case.value("probe.optim_present_step_s"), case.value("probe.optim_fused_step_s")
        recoverable = _claims.optimizer_claim(case)
        evidence = (
            case.evidence("optimizer_ratio", SHARE.value),
            case.evidence("probe.optim_present_step_s"),
            case.evidence("probe.optim_fused_step_s"),
        )
        level = recoverable / _swap.GAIN.value
        if recoverable < _swap.GAIN.value:
            return self.clear(max(0.0, min(level, 0.99)), evidence)
        return self.fires(
            f"the optimizer takes {percent(share)} of the step; fused, the same update takes {fused * 1e3:.1f} ms instead of {present * 1e3:.1f} ms",
            recoverable=recoverable,
            confidence="high",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"optim": "adamw_fused"},
                    speedup_interval(1 / (1 - recoverable), ERROR),
                    "one kernel reads and writes each value once; the moments are kept and nothing else changes",
                    "torch.optim.AdamW(model.parameters(), fused=True)",
                )
            ],
            level=level,
        )
