"""gpu.conv_layout_autotune: convolutions in NCHW where the device is faster in NHWC."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule
from gpuconsole.diagnosis.rules import _gpu, _swap
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding

ON_TENSOR_CORES = ("bf16", "fp16", "tf32")


class GpuConvLayoutAutotune(Rule):
    id = "gpu.conv_layout_autotune"
    title = "Convolutions use the slower NCHW layout"
    clear_title = "The convolution layout costs no avoidable time"
    thresholds = (_swap.GAIN,)
    knobs = ("channels_last",)
    text = """Tensor cores multiply over channels: in 16 bits, or TF32, cuDNN wants NHWC and copies NCHW tensors to and fro around its kernels. oneDNN
blocks channels likewise. Probe P5 runs the present pass in both layouts, in turn, and puts the weights back as they lay; nothing is guessed
from the layout alone, since small images or few channels may gain nothing. On a CPU it is a note: NCHW is how most models are written there,
and no fault of the run."""

    def check(self, case: Case) -> Finding:
        on_gpu = _gpu.on_gpu(case)
        if case.knobs.get("channels_last", True):
            return self.clear(0.0, summary="the layout is NHWC already, or there are no convolutions")
        if on_gpu and case.knobs.get("precision") not in ON_TENSOR_CORES:
            return self.clear(0.0, summary="in fp32 a GPU convolves as fast in NCHW: the precision comes first")
        if _gpu.compute_ratio(case) < _swap.GAIN.value:
            return self.clear(0.0, summary="too little of the step is computing")
        recoverable, evidence = _swap.saves(case, "channels_last"), _swap.evidence(case, "channels_last")
        level = recoverable / _swap.GAIN.value
        if recoverable < _swap.GAIN.value:
            return self.clear(max(0.0, min(level, 0.99)), evidence)
        return self.fires(
            f"the same pass in NHWC (channels_last) runs {case.value('probe.channels_last_speedup'):.2f}x as fast",
            recoverable=recoverable if on_gpu else 0.0,
            confidence=_swap.confidence(case, "channels_last"),
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"channels_last": True},
                    _swap.predicted(case, "channels_last"),
                    "the channels of a pixel lie side by side, as the kernels want them; values stay as they are",
                    "model = model.to(memory_format=torch.channels_last)   # and the batches",
                )
            ],
            level=level,
            note=not on_gpu,
        )
