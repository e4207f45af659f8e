"""gpu.conv_layout_autotune: convolutions use NCHW where the device is faster with NHWC."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.rule import (
    MAX_SHARE,
    Case,
    Finding,
    Rule,
    percent,
    short_of,
    speedup_interval,
)

ON_TENSOR_CORES = ("bf16", "fp16", "tf32")
MOSTLY = 0.5
"""Share of the FLOPs of an fp32 job that TF32 computes: from here on, the job runs on tensor
cores."""
ERROR = 0.5
"""Relative error of a gain that is predicted from the conversions alone: other kernels become
faster in NHWC too."""
WHY = (
    "the channels of a pixel are stored side by side, as the kernels need them; values do not"
    " change"
)
CODE = "model = model.to(memory_format=torch.channels_last)   # and the batches"


class GpuConvLayoutAutotune(Rule):
    id = "gpu.conv_layout_autotune"
    title = "Convolutions use the slower NCHW layout"
    clear_title = "The convolution layout costs no avoidable time"
    thresholds = (passes.GAIN,)
    knobs = ("channels_last",)
    reads = (
        "is_gpu", "forward_ratio", "loss_ratio", "backward_ratio", "probe.channels_last_speedup",
        "probe.channels_last_spread", "precision.tf32_ratio", "profile.layout_ratio",
        "profile.convolution_ratio",
    )  # fmt: skip
    text = """Tensor cores multiply over channels. In 16 bits or TF32, cuDNN needs NHWC and converts
NCHW tensors before and after its kernels. oneDNN blocks channels in a similar way. Probe P5 runs
the current pass in both layouts, alternately, and restores the layout of the weights. Small images
or few channels may gain nothing, so the rule needs a measurement. In a job of your own, a profiler
window (f) shows the kernels that only convert between the layouts: NHWC saves their time, at least.
On a CPU the finding is a note: most models are written for NCHW there, and the run has no fault."""

    def judge(self, case: Case) -> Finding:
        on_gpu = case.on_gpu
        if case.knobs.get("channels_last", True):
            return self.clear(summary="the layout is already NHWC, or there are no convolutions")
        in_tf32 = case.get("precision.tf32_ratio", 0.0) >= MOSTLY
        if on_gpu and case.knobs.get("precision") not in ON_TENSOR_CORES and not in_tf32:
            return self.clear(
                summary="in fp32 a GPU is as fast with NCHW; change the precision first"
            )
        if passes.compute_ratio(case) < passes.GAIN:
            return self.clear(summary="the passes take too little of the step")
        if not case.has("probe.channels_last_speedup") and case.has(
            "profile.layout_ratio", "profile.convolution_ratio"
        ):
            return self._from_the_window(case)
        nhwc = passes.Swap(case, "channels_last")
        recoverable, evidence = nhwc.saves, nhwc.evidence
        level = recoverable / passes.GAIN
        if recoverable < passes.GAIN:
            return self.clear(short_of(level), evidence)
        summary = f"the same pass in NHWC (channels_last) runs {nhwc.speedup:.2f}x as fast"
        change = case.suggest({"channels_last": True}, nhwc.predicted, WHY, CODE)
        if not on_gpu:
            return self.note(
                level, evidence, summary, confidence=nhwc.confidence, suggestions=[change]
            )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=nhwc.confidence,
            suggestions=[change],
        )

    def _from_the_window(self, case: Case) -> Finding:
        """The conclusion from a profiler window over steps of the job."""
        evidence = case.evidence(
            "profile.layout_ratio", "profile.convolution_ratio", "forward_ratio", "backward_ratio"
        )
        recoverable = passes.compute_ratio(case) * min(
            MAX_SHARE, case.value("profile.layout_ratio")
        )
        level = recoverable / passes.GAIN
        if recoverable < passes.GAIN:
            return self.clear(
                short_of(level), evidence, "hardly any kernel converts tensors between the layouts"
            )
        summary = (
            f"kernels that only convert tensors between NCHW and NHWC take {percent(recoverable)}"
            " of the step"
        )
        change = case.suggest(
            {"channels_last": True}, speedup_interval(1 / (1 - recoverable), ERROR), WHY, CODE
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="medium",
            suggestions=[change],
        )
