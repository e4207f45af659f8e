"""gpu.fp32_no_tensor_core: matrix products run in fp32 where the device has faster units for 16
bits."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device, passes
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Interval,
    Missing,
    Rule,
    Suggestion,
    Threshold,
    high_if,
    percent,
    short_of,
)

COMPUTE = Threshold(
    "compute",
    0.50,
    "ratio",
    "the passes must take half of the step; otherwise their precision matters little",
)
ACTIVE = Threshold(
    "tensor_cores",
    0.05,
    "ratio",
    "above 5 % of the time, tensor cores are in use already (for example TF32 by default)",
)
IN_TF32 = Threshold(
    "in_tf32",
    0.50,
    "ratio",
    "tensor cores compute most of the FLOPs in TF32: cuDNN's default for fp32 convolutions",
)
OF_FP32 = Threshold(
    "mfu_of_fp32",
    0.20,
    "ratio",
    "products that reach 20 % of the fp32 peak over the step take at least 20 % of the step",
)
REACHED = 0.6
"""Share of the dense peak that bf16 and TF32 products of usual sizes reach on tensor cores. Large
products reach 60 to 75 %."""
UNCOUNTED = 0.3
"""Share of the step that products take, assumed where the FLOPs are not known. In each built-in
model with products, the products take a larger share."""
BF16_CODE = "with torch.autocast(device_type, dtype=torch.bfloat16): loss = model(batch)"
TF32_CODE = 'torch.set_float32_matmul_precision("high")'
PERMISSION = ". This changes the numbers, so it needs your permission: watch the loss"


class GpuFp32NoTensorCore(Rule):
    id = "gpu.fp32_no_tensor_core"
    title = "Matmuls run in fp32, not on tensor cores"
    clear_title = "The precision costs no avoidable time"
    thresholds = (
        COMPUTE,
        ACTIVE,
        IN_TF32,
        OF_FP32,
        passes.GAIN,
        device.CAUGHT_UP,
        device.WAITED,
        device.CALLS,
    )
    knobs = ("precision",)
    reads = (
        "forward_ratio", "loss_ratio", "backward_ratio", "is_gpu", "profile.tensor_core_ratio",
        "probe.precision_bf16_native", "probe.precision_bf16_speedup",
        "probe.precision_bf16_spread", "probe.precision_tf32_speedup",
        "probe.precision_tf32_spread", "precision.tf32_ratio", "gpu.tensor_active_ratio",
        "gpu.bf16_speed_ratio", "gpu.tf32_speed_ratio", "mfu_ratio", "host.caught_up_ratio",
        "sync.calls", "sync.wait_s", "host.ahead_ratio", "step_s", "mfu_above_peak",
    )  # fmt: skip
    text = """GPUs since Ampere multiply matrices 2 to 15 times as fast in bf16 as in fp32, on
tensor cores that fp32 does not use. Some CPUs (AVX512-BF16, AMX) have such units too. Probe P5 runs
the current pass and a pass in bf16 (on a GPU also in TF32) alternately, since small products may
gain nothing. The rule is silent where a device only emulates bf16. On a CPU the finding is a note:
most CPU training uses fp32 on purpose.
Without the probe, on a GPU: the precision is fp32, the program has not allowed TF32 for its
products, tensor cores are active for less than 5 % of the time (GPM, from Hopper on), and the GPU
is the limit of the step. Without GPM the MFU over the fp32 peak tells how long the products take at
least. cuDNN uses TF32 for fp32 convolutions by default: such a model is on tensor cores already.
Another precision changes the numbers, so no change is made without your permission."""

    def judge(self, case: Case) -> Finding:
        compute, on_gpu = passes.compute_ratio(case), case.on_gpu
        if case.knobs.get("precision") != "fp32" or compute < COMPUTE:
            return self.clear(
                summary=(
                    "the precision is already lower than fp32, or the passes take less than half of"
                    " the step"
                )
            )
        if on_gpu:
            for signal, limit in (
                ("profile.tensor_core_ratio", ACTIVE),
                ("gpu.tensor_active_ratio", ACTIVE),
            ):
                if case.get(signal, 0.0) >= limit:
                    return self.clear(
                        0.0, case.evidence((signal, limit)), "tensor cores are in use"
                    )
            if (
                case.get("precision.tf32_ratio", 0.0) >= IN_TF32
                and case.get("gpu.tf32_speed_ratio", 2.0) > 1
            ):
                return self.clear(
                    0.0,
                    case.evidence(("precision.tf32_ratio", IN_TF32)),
                    "tensor cores compute the products in TF32",
                )
            if not case.has("probe.precision_bf16_native"):
                return self._from_the_setting(case, compute)
        if case.value("probe.precision_bf16_native") <= 0:
            return self.clear(
                0.0,
                case.evidence("probe.precision_bf16_native"),
                "this device has no bf16 instructions",
            )
        bf16 = passes.Swap(case, "precision_bf16")
        recoverable = bf16.saves
        evidence = bf16.evidence + case.evidence("probe.precision_bf16_native")
        level = recoverable / passes.GAIN
        if recoverable < passes.GAIN:
            return self.clear(short_of(level), evidence)
        where = "tensor cores" if on_gpu else "this CPU's bf16 instructions"
        summary = (
            f"the same pass in bf16 runs {bf16.speedup:.2f}x as fast on {where}. Watch the loss"
        )
        changes = [
            _suggestion(
                case, "bf16", "autocast: products in bf16, sums and weights in fp32", BF16_CODE
            ),
            _suggestion(
                case,
                "tf32",
                "fp32 with products of 10 bits of mantissa: the smaller change",
                TF32_CODE,
            ),
        ]
        if on_gpu:
            return self.fires(
                level,
                evidence,
                summary,
                recoverable=recoverable,
                confidence=bf16.confidence,
                suggestions=changes,
            )
        title = "Matmuls run in fp32; this CPU is faster in bf16"
        return self.note(
            level, evidence, summary, confidence=bf16.confidence, suggestions=changes, title=title
        )

    def _from_the_setting(self, case: Case, compute: float) -> Finding:
        """The conclusion without the probe: from the precision, the peaks of the card, and its
        tensor cores or MFU."""
        if not case.has(
            "gpu.bf16_speed_ratio", "host.caught_up_ratio", "sync.wait_s", "sync.calls"
        ):
            raise Missing("probe.precision_bf16_native")
        if case.has("mfu_above_peak"):
            return self.clear(
                0.0,
                case.evidence("mfu_above_peak"),
                "the FLOP/s are above the peak of fp32, so tensor cores are in use",
            )
        counted, watched = case.has("mfu_ratio"), case.has("gpu.tensor_active_ratio")
        if not counted and not watched:
            raise Missing("probe.precision_bf16_native")
        speed = case.value("gpu.bf16_speed_ratio")
        evidence = case.if_known(
            ("gpu.tensor_active_ratio", ACTIVE), ("mfu_ratio", OF_FP32), "precision.tf32_ratio"
        )
        evidence += case.evidence(
            "gpu.bf16_speed_ratio", ("host.caught_up_ratio", device.CAUGHT_UP)
        )
        if speed <= 1:
            return self.clear(0.0, evidence, "this card has no faster units for products")
        if device.host_is_limit(case):
            return self.clear(0.0, evidence, "the host is the limit of the step, not the products")
        # products run no faster than the peak, so they take at least MFU of the step
        products = min(compute, case.value("mfu_ratio")) if counted else UNCOUNTED * compute
        if not watched and products < OF_FP32:
            return self.clear(
                short_of(products / OF_FP32), evidence, "the products take too little of the step"
            )
        recoverable = products * _saved(speed * REACHED)
        if recoverable < passes.GAIN:
            return self.clear(
                short_of(recoverable / passes.GAIN),
                evidence,
                "the products take too little of the step",
            )
        idle = (
            (
                f"tensor cores are active for {percent(case.value('gpu.tensor_active_ratio'))} of"
                " the time"
            )
            if watched
            else "TF32 is not allowed"
        )
        summary = (
            f"products run in fp32 and take at least {percent(products)} of the step; {idle}."
            f" In bf16 the peak of this card is {speed:.1f}x as high. Watch the loss"
        )
        autocast = f"autocast: products in bf16, sums and weights in fp32{PERMISSION}"
        changes = [
            case.suggest(
                {"precision": "bf16"}, _gain(products, compute, speed), autocast, BF16_CODE
            )
        ]
        tf32 = case.get("gpu.tf32_speed_ratio", 1.0)
        if tf32 * REACHED > 1:
            smaller = f"fp32 with products of 10 bits of mantissa: the smaller change{PERMISSION}"
            changes.append(
                case.suggest(
                    {"precision": "tf32"}, _gain(products, compute, tf32), smaller, TF32_CODE
                )
            )
        level = recoverable / passes.GAIN
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=high_if(watched and counted),
            suggestions=changes,
        )


def _saved(speed: float) -> float:
    """The share of their time that products save which run `speed` times as fast."""
    return 1 - 1 / max(1.0, speed)


def _gain(products: float, compute: float, speed: float) -> Interval:
    """From `products` of the step at REACHED of the peak, to all passes at the ratio of the
    peaks."""
    return Interval(
        1 / (1 - products * _saved(speed * REACHED)), 1 / (1 - min(0.95, compute * _saved(speed)))
    )


def _suggestion(case: Case, precision: str, why: str, code: str) -> Suggestion | None:
    """With the gain that probe P5 measured; None where the precision gains nothing."""
    if case.get(f"probe.precision_{precision}_speedup", 1.0) <= 1.0:
        return None
    return case.suggest(
        {"precision": precision}, passes.Swap(case, f"precision_{precision}").predicted, why, code
    )
