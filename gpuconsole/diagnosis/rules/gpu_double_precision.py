"""gpu.double_precision: the model computes in float64."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device, passes
from gpuconsole.diagnosis.rule import Case, Finding, Interval, Rule, Suggestion, Threshold

IN_FP64 = Threshold("in_fp64", 0.50, "ratio", "half of the FLOPs of the counted step")
COMPUTE = Threshold(
    "compute", 0.30, "ratio", "below 30 % of a step in the passes, their precision matters little"
)
MIN_GAIN = 1.05
USUAL_GAIN = 1.5
MAX_GAIN = 2.1
"""How much faster float32 makes a pass. Measured on one core of a Xeon with AVX-512, float64 over
float32: 1.06 for layers of 64 to 128 (64 samples), 1.7 for convolutions, 1.8 for a transformer of
width 128, 2.05 for layers of 512 to 1024 (256 samples). More for nn.LSTM (3.7), and on GPUs for
graphics and inference, whose fp64 peak is 1/64 of that in fp32: CUDA C++ Programming Guide,
"Arithmetic Instructions"."""


class GpuDoublePrecision(Rule):
    id = "gpu.double_precision"
    title = "The model computes in float64"
    clear_title = "Few products are in float64"
    jobs_only = True
    thresholds = (IN_FP64, COMPUTE, device.CAUGHT_UP, device.WAITED, device.CALLS)
    knobs = ("precision",)
    reads = (
        "precision.fp64_ratio", "forward_ratio", "loss_ratio", "backward_ratio", "is_gpu",
        "host.caught_up_ratio", "sync.calls", "sync.wait_s", "host.ahead_ratio", "step_s",
    )  # fmt: skip
    text = """NumPy makes arrays of float64, and torch.from_numpy keeps that type: a model that is
made to fit such data computes in double precision. Neural networks rarely need it. float64 takes
twice the memory and twice the bandwidth of float32, a CPU computes half as many values at once, and
a GPU has at best half of the units (a GPU for graphics or inference 1/64). The number types are
those of the products in the step whose FLOPs the agent counts; where it counts none, the type of
the weights decides. On a GPU the rule is silent where the host is the limit of the step. The
console cannot change the type of the weights of a running program: change your code, and watch the
loss."""
    ignore = "The program needs double precision, as a simulation of physics may."

    def judge(self, case: Case) -> Finding:
        counted = case.has("precision.fp64_ratio") or "precision" not in case.knobs
        share = (
            case.value("precision.fp64_ratio")
            if counted
            else float(case.knobs["precision"] == "fp64")
        )
        evidence = case.if_known(("precision.fp64_ratio", IN_FP64))
        if share < IN_FP64:
            return self.clear(share / IN_FP64, evidence)
        compute = passes.compute_ratio(case)
        evidence += case.evidence("forward_ratio", "backward_ratio")
        if compute < COMPUTE:
            return self.clear(compute / COMPUTE, evidence, "the passes take little of the step")
        if case.on_gpu and device.host_is_limit(case):
            return self.clear(0.0, evidence, "the host is the limit of the step, not the products")
        recoverable = compute * (1 - 1 / USUAL_GAIN)
        summary = (
            "the products of the model are in float64, which takes twice the memory of float32 and"
            " at least twice the arithmetic"
        )
        return self.fires(
            share / IN_FP64,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="medium",
            suggestions=[_in_float32(case, compute)],
        )


def _in_float32(case: Case, compute: float) -> Suggestion | None:
    gain = Interval(1 / (1 - compute * (1 - 1 / MIN_GAIN)), MAX_GAIN)
    why = "float32 has 7 digits, float64 16. This changes the numbers: watch the loss"
    code = (
        "data = data.astype(numpy.float32)   # the arrays; and model.float() where the model was"
        " made in float64"
    )
    return case.suggest({"precision": "fp32"}, gain, why, code)
