"""host.launch_bound: the host issues kernels more slowly than the GPU runs them."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device, passes
from gpuconsole.diagnosis.rule import (
    MAX_SHARE,
    Case,
    Evidence,
    Finding,
    Interval,
    Missing,
    Rule,
    Suggestion,
    Threshold,
    percent,
    short_of,
)

ISSUE = Threshold(
    "issue", 0.90, "ratio", "the host issues kernels for 90 % of a pass or more (survey T09)"
)
BUSY = Threshold(
    "busy", 0.80, "ratio", "the GPU needs less than 80 % of that time for its own work (survey T09)"
)
MIN_COMPUTE = 0.2
"""Below this share of the step, launches in the passes cannot be the main cost."""
HEALTHY_BUSY = 0.95
"""The GPU is busy even under the profiler, which slows down the host and not the GPU."""
BESIDE = 0.10
"""Share of a step beside the passes. From here on, it explains why the GPU has nothing to do at the
end of a step."""


class HostLaunchBound(Rule):
    id = "host.launch_bound"
    title = "The GPU waits for kernel launches"
    clear_title = "Kernel launches keep up with the GPU"
    gpu_only = True
    thresholds = (
        ISSUE,
        BUSY,
        device.CAUGHT_UP,
        device.WAITED,
        device.CALLS,
        device.MFU,
        device.MFU_CAUSAL,
    )
    knobs = ("torch_compile",)
    reads = (
        "is_gpu", "mfu_at_least", "hfu_ratio", "forward_ratio", "loss_ratio", "backward_ratio",
        "mfu_ratio", "mfu_causal_ratio", "profile.busy_ratio", "probe.issue_s", "probe.pass_gpu_s",
        "probe.pass_s", "profile.mean_kernel_s", "profile.launches_per_s", "host.caught_up_ratio",
        "sync.calls", "sync.wait_s", "host.ahead_ratio", "step_s", "gpu.sm_active_ratio",
        "gpu.util_ratio", "data_wait_ratio", "h2d_ratio", "logging_ratio", "checkpoint_ratio",
        "eval_ratio", "other_ratio", "runq_ratio", "recent.logging_ratio",
        "recent.checkpoint_ratio", "recent.eval_ratio", "hw.datasheet_clock_ratio",
        "hw.power_cap_time_ratio", "hw.thermal_time_ratio", "hw.other_processes",
        "model.trained_ratio", "stack.function_ratio", "stack.function_python_ratio",
        "stack.function_waits_ratio",
    )  # fmt: skip
    text = """Probe P9 measures how long the host needs to issue a forward and backward pass, how
long the pass takes, and how long the GPU needs if the whole pass was issued beforehand, behind a
kernel that only waits. If issuing takes nearly the whole pass and the GPU's own work far less, the
GPU is idle between small kernels, although utilisation reads 100 %.
In a job of your own no pass is tried. At the end of each sampled step the agent reads whether the
GPU has finished all work except the last part. The rule fires if the GPU has no work left, the host
has waited neither for the GPU nor for data, and few SMs are active (without GPM: MFU is low; where
the peak of the card is not known: GPU-Util is low). A GPU with work left means that the host is
ahead. The rule then fires, with low confidence, only if the GPU runs no kernel for a large part of
the time (GPU-Util), and nothing else explains that. The time in which the thread waits for a core
is subtracted. The figure for the gain is an upper limit.
Fewer and larger kernels help: CUDA graphs, fusion, or a larger batch (gpu.small_batch predicts that
gain). Other rules cover waiting for a core, for data, or in a synchronisation."""

    def judge(self, case: Case) -> Finding:
        compute = passes.compute_ratio(case)
        if (
            compute < MIN_COMPUTE
            or device.computes_well(case)
            or case.get("profile.busy_ratio", 0.0) >= HEALTHY_BUSY
        ):
            return self.clear(
                summary="the GPU is busy, or the passes take less than 20 % of the step"
            )
        if device.knows_the_lead(case):
            return self._from_the_lead(case)
        issue, alone, whole = (
            case.value("probe.issue_s"),
            case.value("probe.pass_gpu_s"),
            case.value("probe.pass_s"),
        )
        issuing, busy = issue / whole, min(1.0, alone / whole)
        evidence = case.evidence(
            ("probe.issue_s", ISSUE * whole), ("probe.pass_gpu_s", BUSY * whole), "probe.pass_s"
        )
        evidence += case.if_known("profile.mean_kernel_s", "profile.launches_per_s")
        level = min(issuing / ISSUE, (1 - busy) / (1 - BUSY))
        if issuing < ISSUE or busy >= BUSY:
            return self.clear(short_of(level), evidence)
        share = min(MAX_SHARE, compute * (1 - busy))
        summary = (
            f"a pass takes {whole * 1e3:.1f} ms; the host needs {issue * 1e3:.1f} ms to issue its"
            f" kernels, the GPU only {alone * 1e3:.1f} ms to run them"
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=share,
            confidence="high",
            suggestions=_fused(case, share),
        )

    def _from_the_lead(self, case: Case) -> Finding:
        """The conclusion from the lead of the host over the GPU, without a probe."""
        caught_up = case.value("host.caught_up_ratio")
        evidence = device.busy_evidence(case) + case.if_known(
            "profile.mean_kernel_s", "profile.launches_per_s"
        )
        level = caught_up / device.CAUGHT_UP
        if level < 1:
            return self._while_ahead(case, short_of(level), evidence)
        if not device.host_is_limit(case):
            return self.clear(
                0.0,
                evidence,
                "the host waits until the GPU has done its work: the GPU is the limit",
            )
        beside, known = device.beside_passes(case), case.has("gpu.sm_active_ratio")
        if not known and device.waited_ratio(case) >= device.WAITED:
            return self.clear(
                0.0,
                evidence,
                (
                    "the host waits for the GPU within the step. While the host waits, the cost of"
                    " launches cannot be seen"
                ),
            )
        if beside >= BESIDE and not known:
            return self.clear(
                0.0,
                evidence,
                (
                    f"the host spends {percent(beside)} of a step outside of the passes. The GPU is"
                    " idle in that time"
                ),
            )
        busy = device.busy_ratio(case)
        if busy is None:
            raise Missing("probe.issue_s")
        share = max(
            0.0, 1 - beside - busy - device.waited_ratio(case) - case.get("runq_ratio", 0.0)
        )
        level = min(level, share / (1 - BUSY))
        if share < 1 - BUSY:
            return self.clear(short_of(level), evidence)
        summary = (
            f"in {percent(caught_up)} of the steps the GPU has no work left when the host ends the"
            f" step, and {device.busy_words(case)}. The host issues kernels more slowly than the"
            " GPU runs them"
        )
        share = min(MAX_SHARE, share)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=share,
            confidence="high" if known else "low",
            suggestions=_fused(case, share),
        )

    def _while_ahead(self, case: Case, level: float, evidence: tuple[Evidence, ...]) -> Finding:
        """Return the conclusion for a GPU that has work left at the end of a step. The host may
        issue the end of a step quickly, but earlier kernels late. The driver then measures time
        without a kernel that is explained neither by waits, nor by Python of the program, nor by a
        missing core."""
        own = case.get("stack.function_ratio", 0.0) * (
            case.get("stack.function_python_ratio", 0.0)
            + case.get("stack.function_waits_ratio", 0.0)
        )
        explained = device.beside_passes(case) + device.waited_ratio(case) + own
        explained += case.get("runq_ratio", 0.0)
        share = min(MAX_SHARE, max(0.0, device.idle(case).least - explained))
        if share < 1 - BUSY:
            words = "the host is ahead of the GPU: the GPU has work left at the end of a step"
            return self.clear(level, evidence, words)
        summary = (
            f"the GPU runs no kernel in {percent(device.idle(case).least)} of the time, although"
            " the host is ahead at the end of a step: the host issues the kernels before late"
        )
        return self.fires(
            share / (1 - BUSY),
            evidence,
            summary,
            recoverable=share,
            confidence="low",
            suggestions=_fused(case, share),
        )


def _fused(case: Case, share: float) -> list[Suggestion | None]:
    """Fewer launches by torch.compile; at best only the GPU's own time remains. First without CUDA
    graphs, which keep memory for themselves and may not run."""
    compiled = case.knobs.get("torch_compile")
    modes = ["default"] if compiled == "off" else []
    if compiled in ("off", "default") and passes.graphs_keep_gradients(case):
        modes.append("reduce-overhead")
    kernels = {"default": "fused kernels", "reduce-overhead": "fused kernels in CUDA graphs"}
    return [
        case.suggest(
            {"torch_compile": mode},
            Interval(1.0, 1 / (1 - share)),
            f"{kernels[mode]} need fewer launches; at best only the GPU's own time remains",
            f'model = torch.compile(model, mode="{mode}")',
        )
        for mode in modes
    ]
