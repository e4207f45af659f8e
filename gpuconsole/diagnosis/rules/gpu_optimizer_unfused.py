"""gpu.optimizer_unfused: the optimizer updates the parameters tensor by tensor, operation by
operation."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Rule,
    Threshold,
    percent,
    short_of,
    speedup_interval,
)

SHARE = Threshold("optimizer", 0.10, "ratio", "below 10 % of the step no kernel can gain much")
ERROR = 0.2
"""Relative error of the predicted gain: copies of the parameters may be in caches more often than
the parameters."""


class GpuOptimizerUnfused(Rule):
    id = "gpu.optimizer_unfused"
    title = "The optimizer is not fused"
    clear_title = "The optimizer costs no avoidable time"
    thresholds = (SHARE, passes.GAIN)
    knobs = ("optim",)
    reads = ("optimizer_ratio", "probe.optim_present_step_s", "probe.optim_fused_step_s")
    text = """Adam and AdamW read the parameter, the gradient and two moments, and write back all
but the gradient: 28 bytes per parameter in fp32. An update that runs one tensor and one
operation at a time moves several times these bytes and launches a kernel for each operation.
`foreach` saves launches; `fused` saves the traffic too, also on a CPU. Where the optimizer
takes 10 % of the step or more, probe P5 times both on copies of the parameters.
The share is largest with many parameters and few tokens per step. Gradient accumulation also helps:
the update runs less often."""

    def judge(self, case: Case) -> Finding:
        share = case.value("optimizer_ratio")
        if case.knobs.get("optim") not in passes.UNFUSED or share < SHARE:
            return self.clear(0.0, case.evidence(("optimizer_ratio", SHARE)))
        present, fused = (
            case.value("probe.optim_present_step_s"),
            case.value("probe.optim_fused_step_s"),
        )
        recoverable = passes.optimizer_claim(case)
        evidence = case.evidence(
            ("optimizer_ratio", SHARE), "probe.optim_present_step_s", "probe.optim_fused_step_s"
        )
        level = recoverable / passes.GAIN
        if recoverable < passes.GAIN:
            return self.clear(short_of(level), evidence)
        summary = (
            f"the optimizer takes {percent(share)} of the step; fused, the same update takes"
            f" {fused * 1e3:.1f} ms instead of {present * 1e3:.1f} ms"
        )
        why = (
            "one kernel reads and writes each value once; the moments are kept and nothing else"
            " changes"
        )
        code = "torch.optim.AdamW(model.parameters(), fused=True)  # Adam has fused too"
        change = case.suggest(
            {"optim": "adamw_fused"}, speedup_interval(1 / (1 - recoverable), ERROR), why, code
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="high",
            suggestions=[change],
        )
