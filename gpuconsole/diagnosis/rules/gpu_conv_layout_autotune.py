"""gpu.conv_layout_autotune: convolutions use NCHW where the device is faster with NHWC."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.rule import Case, Finding, Rule, short_of

ON_TENSOR_CORES = ("bf16", "fp16", "tf32")


class GpuConvLayoutAutotune(Rule):
    id = "gpu.conv_layout_autotune"
    title = "Convolutions use the slower NCHW layout"
    clear_title = "The convolution layout costs no avoidable time"
    thresholds = (passes.GAIN,)
    knobs = ("channels_last",)
    reads = ("is_gpu", "forward_ratio", "backward_ratio", "probe.channels_last_speedup", "probe.channels_last_spread")
    text = """Tensor cores multiply over channels. In 16 bits or TF32, cuDNN needs NHWC and converts NCHW tensors before and after its kernels. oneDNN
blocks channels in a similar way. Probe P5 runs the present pass in both layouts, alternately, and restores the layout of the weights. Small
images or few channels may gain nothing, so the rule needs that measurement. On a CPU the finding is a note: most models are written for NCHW
there, and the run has no fault."""

    def judge(self, case: Case) -> Finding:
        on_gpu = case.on_gpu
        if case.knobs.get("channels_last", True):
            return self.clear(summary="the layout is already NHWC, or there are no convolutions")
        if on_gpu and case.knobs.get("precision") not in ON_TENSOR_CORES:
            return self.clear(summary="in fp32 a GPU is as fast with NCHW; change the precision first")
        if passes.compute_ratio(case) < passes.GAIN:
            return self.clear(summary="the passes take too little of the step")
        nhwc = passes.Swap(case, "channels_last")
        recoverable, evidence = nhwc.saves, nhwc.evidence
        level = recoverable / passes.GAIN
        if recoverable < passes.GAIN:
            return self.clear(short_of(level), evidence)
        summary = f"the same pass in NHWC (channels_last) runs {nhwc.speedup:.2f}x as fast"
        why = "the channels of a pixel are stored side by side, as the kernels need them; values do not change"
        code = "model = model.to(memory_format=torch.channels_last)   # and the batches"
        change = case.suggest({"channels_last": True}, nhwc.predicted, why, code)
        if not on_gpu:
            return self.note(level, evidence, summary, confidence=nhwc.confidence, suggestions=[change])
        return self.fires(level, evidence, summary, recoverable=recoverable, confidence=nhwc.confidence, suggestions=[change])
