"""host.launch_bound: the host issues kernels more slowly than the GPU runs them."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.rule import MOST, Case, Finding, Interval, Rule, Threshold, short_of

ISSUE = Threshold("issue", 0.90, "ratio", "the host issues kernels for 90 % of a pass or more (survey T09)")
BUSY = Threshold("busy", 0.80, "ratio", "the GPU needs less than 80 % of that time for its own work (survey T09)")
HEALTHY_MFU = 0.40
"""A GPU that reaches 40 % of its peak does not wait for launches."""
HEALTHY_BUSY = 0.95
"""The GPU is busy even under the profiler, which slows down the host and not the GPU."""


class HostLaunchBound(Rule):
    id = "host.launch_bound"
    title = "The GPU waits for kernel launches"
    clear_title = "Kernel launches keep up with the GPU"
    gpu_only = True
    thresholds = (ISSUE, BUSY)
    knobs = ("torch_compile",)
    reads = (
        "is_gpu", "forward_ratio", "backward_ratio", "mfu_ratio", "profile.busy_ratio", "probe.issue_s", "probe.pass_gpu_s",
        "probe.pass_s", "profile.mean_kernel_s", "profile.launches_per_s",
    )  # fmt: skip
    text = """Probe P9 measures how long the host needs to issue a forward and backward pass, how long the pass takes, and how long the GPU needs if the whole
pass was issued beforehand, behind a kernel that only waits. If issuing takes nearly the whole pass and the GPU's own work far less, the GPU
is idle between small kernels, although utilisation reads 100 %. Fewer and larger kernels help: CUDA graphs, fusion, or a larger batch
(gpu.small_batch predicts that gain). Other rules cover waiting for a core, for data, or in a synchronisation."""

    def judge(self, case: Case) -> Finding:
        compute = passes.compute_ratio(case)
        if compute < 0.2 or case.get("mfu_ratio", 0.0) >= HEALTHY_MFU or case.get("profile.busy_ratio", 0.0) >= HEALTHY_BUSY:
            return self.clear(summary="the GPU is busy, or the passes take less than 20 % of the step")
        issue, alone, whole = case.value("probe.issue_s"), case.value("probe.pass_gpu_s"), case.value("probe.pass_s")
        issuing, busy = issue / whole, min(1.0, alone / whole)
        evidence = case.evidence(("probe.issue_s", ISSUE * whole), ("probe.pass_gpu_s", BUSY * whole), "probe.pass_s")
        evidence += case.if_known("profile.mean_kernel_s", "profile.launches_per_s")
        level = min(issuing / ISSUE, (1 - busy) / (1 - BUSY))
        if issuing < ISSUE or busy >= BUSY:
            return self.clear(short_of(level), evidence)
        share = min(MOST, compute * (1 - busy))
        graphs = passes.graphs_keep_gradients(case)
        mode = "reduce-overhead" if graphs else "default"
        summary = f"a pass takes {whole * 1e3:.1f} ms; the host needs {issue * 1e3:.1f} ms to issue its kernels, the GPU only {alone * 1e3:.1f} ms to run them"
        why = f"fused kernels{' in CUDA graphs' if graphs else ''} need fewer launches; at best only the GPU's own time remains"
        code = f'model = torch.compile(model, mode="{mode}")'
        fused = case.suggest({"torch_compile": mode}, Interval(1.0, 1 / (1 - share)), why, code)
        changes = [fused if case.knobs.get("torch_compile") in ("off", "default") else None]
        return self.fires(level, evidence, summary, recoverable=share, confidence="high", suggestions=changes)
