"""host.launch_bound: the host cannot issue kernels as fast as the GPU runs them."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _gpu
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding, Interval

ISSUE = Threshold("issue", 0.90, "ratio", "the host is busy issuing for 9 tenths of a pass (DIAGNOSIS T09)")
BUSY = Threshold("busy", 0.80, "ratio", "the GPU needs less than 8 tenths of that time for the work itself (DIAGNOSIS T09)")
HEALTHY_MFU = 0.40
"""No GPU that waits for launches does 40 % of its peak."""
HEALTHY_BUSY = 0.95
"""Busy so much even under the profiler, which slows the host down but not the GPU."""


class HostLaunchBound(Rule):
    id = "host.launch_bound"
    title = "The GPU waits for kernel launches"
    clear_title = "Kernel launches keep up with the GPU"
    thresholds = (ISSUE, BUSY)
    knobs = ("torch_compile",)
    text = """Probe P9 times how long the host needs to issue a forward and backward pass without waiting for it, how long the pass takes, and how long
the GPU needs for it when all of it is issued beforehand, behind a kernel that only waits. When issuing takes nearly all of the pass and
the work itself far less, the GPU idles between small kernels, though its utilisation reads 100 %. Fewer and larger kernels help: CUDA
graphs, fusion, or a larger batch, which gpu.small_batch suggests with its own prediction. Waiting for a core, for data, or in a
synchronisation are other rules' matters."""

    def check(self, case: Case) -> Finding:
        if not _gpu.on_gpu(case):
            return self.not_on_gpu()
        compute = _gpu.compute_ratio(case)
        if compute < 0.2 or case.get("mfu_ratio", 0.0) >= HEALTHY_MFU or case.get("profile.busy_ratio", 0.0) >= HEALTHY_BUSY:
            return self.clear(0.0, summary="the GPU is busy, or passes matter little to the step")
        issue, alone, whole = case.value("probe.issue_s"), case.value("probe.pass_gpu_s"), case.value("probe.pass_s")
        issuing, busy = issue / whole, min(1.0, alone / whole)
        evidence = (
            case.evidence("probe.issue_s", ISSUE.value * whole),
            case.evidence("probe.pass_gpu_s", BUSY.value * whole),
            case.evidence("probe.pass_s"),
            *case.if_known("profile.mean_kernel_s", "profile.launches_per_s"),
        )
        level = min(issuing / ISSUE.value, (1 - busy) / (1 - BUSY.value))
        if issuing < ISSUE.value or busy >= BUSY.value:
            return self.clear(min(0.99, level), evidence)
        share = min(_gpu.MOST, compute * (1 - busy))
        graphs = _gpu.graphs_keep_gradients(case)
        mode = "reduce-overhead" if graphs else "default"
        return self.fires(
            f"a pass takes {whole * 1e3:.1f} ms, {issue * 1e3:.1f} of which the host spends issuing kernels; the GPU's own work is {alone * 1e3:.1f} ms",
            recoverable=share,
            confidence="high",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"torch_compile": mode},
                    Interval(1.0, 1 / (1 - share)),
                    f"fused kernels{' in CUDA graphs' if graphs else ''}: one launch for many; at best the GPU's own time is left",
                    f'model = torch.compile(model, mode="{mode}")',
                )
                if case.knobs.get("torch_compile") in ("off", "default") and case.knobs.get("torch_compile") != mode
                else None
            ],
            level=level,
        )
