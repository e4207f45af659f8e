"""Minimum bytes between memory and the device, if each operation reads and writes each value once.

The minimum time is these bytes over the memory bandwidth (datasheet, or a copy measured on this
machine). MBU is the minimum time over the measured time. Bytes count reads plus writes, as the
measured copy does.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from gpuconsole.diagnosis.models.collective import collective_figures
from gpuconsole.diagnosis.models.flops import flops_per_sample
from gpuconsole.diagnosis.models.inputs import FP32, NOT_STEADY, ModelInputs, with_note
from gpuconsole.diagnosis.models.memory import UPDATE_BYTES, activations
from gpuconsole.diagnosis.models.roofline import attainable, ridge, side
from gpuconsole.model.figures import Figure


@dataclass(frozen=True)
class StepBytes:
    """Bytes per optimizer step of one process. `weights`: read by forward and backward pass.
    `gradients`: written and accumulated."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def step_bytes(
    parameters: float,
    trained: float,
    optim: str,
    passes: int = 1,
    precision: str = "fp32",
    updated: float | None = None,
    element: float = FP32,
    of_trained: float = FP32,
) -> StepBytes:
    """Bytes of the states, without activations (`activation_bytes`). `updated`: number of
    parameters that this process updates; None: all trained. `element`, `of_trained`: bytes of a
    parameter as it is stored, and of a trained one.

    Forward and backward pass each read the weights once. In 16 bits autocast reads the fp32 weight
    and writes a copy that both passes read. Gradient accumulation repeats these reads `passes`
    times. The first pass writes gradients; further passes read and write them.
    """
    copied = precision in ("bf16", "fp16") and element > 2
    per_weight = element + 2 + 2 + 2 if copied else 2 * element
    wide = 1.0 if optim == "adamw_8bit" else of_trained / FP32
    return StepBytes(
        weights=per_weight * parameters * passes,
        gradients=of_trained * trained * (2 * passes - 1),
        optimizer=wide * UPDATE_BYTES[optim] * (trained if updated is None else updated),
    )


def activation_bytes(saved: float, passes: int = 1) -> float:
    """Activations for the backward pass are written once and read once."""
    return 2 * saved * passes


# --- the figures of a run: optimizer update, step, collectives, roofline --------------------------

NO_BANDWIDTH = "the memory bandwidth is not known (run gpuconsole calibrate)"
NO_COUNT = "the number of parameters that a step reads and writes is not known"
CACHED = "data that fits into caches moves faster than memory bandwidth"
NO_TRAFFIC = "not measured: this device has no counter of memory traffic"


def bandwidth_figures(inputs: ModelInputs) -> list[Figure]:
    """All bandwidth figures. A workload that does not train has no optimizer figures."""
    return [
        *(_optimizer(inputs) if inputs.trains else []),
        *_step(inputs),
        *collective_figures(inputs),
        *_roofline(inputs),
    ]


def _updated(inputs: ModelInputs, trained: float) -> float:
    """Parameters that one process updates."""
    if inputs.local_ratio < 1:
        return trained * inputs.local_ratio
    return (
        trained / inputs.replicas
        if inputs.text("sharding", "none") in ("zero1", "zero2", "zero3")
        else trained
    )


def needed(inputs: ModelInputs) -> StepBytes | None:
    """Minimum bytes of states in one optimizer step of one process; None where the optimizer has no
    model."""
    trained, read, optim = (
        _traffic_bytes(inputs),
        inputs.linear,
        inputs.text("optim", "adamw_fused"),
    )
    if trained is None or read is None or optim not in UPDATE_BYTES:
        return None
    part = 1 / inputs.tensor_parallel
    # a pass reads only the rows of an embedding that are in the batch
    return step_bytes(
        read * part,
        trained * part,
        optim,
        inputs.passes,
        inputs.precision,
        _updated(inputs, trained) * part,
        inputs.element_bytes,
        inputs.trained_bytes,
    )


def _traffic_bytes(inputs: ModelInputs) -> float | None:
    """Trained parameters that a step writes: all parameters; for a table with sparse gradients only
    the rows in the batch."""
    if not inputs.knobs.get("sparse") or inputs.trained is None:
        return inputs.trained
    ratio, table = (
        inputs.facts.get("embedding.rows_touched_ratio"),
        inputs.facts.get("embedding.table_bytes"),
    )
    return None if ratio is None or table is None else inputs.trained - table / FP32 * (1 - ratio)


def _optimizer(inputs: ModelInputs) -> list[Figure]:
    """Time of the optimizer update at full bandwidth next to the measured time, and the resulting
    share of the bandwidth."""
    step, ratio, moved, bandwidth = (
        inputs.value("step_s"),
        inputs.value("optimizer_ratio"),
        needed(inputs),
        inputs.bytes_per_s,
    )
    per = UPDATE_BYTES.get(inputs.text("optim", ""), 0) * inputs.trained_bytes / FP32
    formula = f"{per:.4g} B x trained parameters / bandwidth, at least"
    note = _missing(inputs, moved) or CACHED
    predicted = moved.optimizer / bandwidth[0] if moved and bandwidth else None
    time = Figure(
        "bandwidth.optimizer_s",
        "Time of the optimizer update",
        "s",
        predicted,
        formula=formula,
        note=note,
    )
    if step is not None and ratio is not None:
        time = replace(time, measured=step * ratio, source="step breakdown")
    formula = "minimum bytes of the update / its time / bandwidth"
    mbu = Figure(
        "mbu.optimizer", "MBU of the optimizer update", "ratio", formula=formula, note=note
    )
    if time.predicted is not None and time.measured:
        source = f"step breakdown over {bandwidth[1]}" if bandwidth else ""
        mbu = replace(mbu, measured=time.predicted / time.measured, source=source)
    return [time, mbu]


def _missing(inputs: ModelInputs, moved: StepBytes | None) -> str:
    if moved is None:
        return (
            "not predicted: "
            f"{NO_COUNT if _traffic_bytes(inputs) is None else 'no model for this optimizer'}"
        )
    if inputs.bytes_per_s is None:
        return f"not predicted: {NO_BANDWIDTH}"
    return "" if inputs.value("step_s") is not None else f"not measured: {NOT_STEADY}"


def bytes_of_step(inputs: ModelInputs) -> tuple[float, str] | None:
    """Minimum bytes of one process in a step, and the contents of this count: states and known
    activations, or the bytes that the workload reports per sample."""
    moved, own, samples = (
        needed(inputs),
        inputs.facts.get("bytes_per_sample"),
        inputs.samples_per_step,
    )
    if own is not None and samples:
        return own * samples / inputs.world + (
            moved.total if moved else 0.0
        ), "bytes that the run counts for a sample"
    if inputs.matrix_size and samples:
        element = 2 if inputs.precision in ("bf16", "fp16") else FP32
        return (
            3 * element * inputs.matrix_size**2 * samples / inputs.world,
            "three matrices per product",
        )
    if moved is None:
        return None
    if inputs.shape is None:
        return moved.total, "weights, gradients and optimizer (activations are not known)"
    checkpointing = bool(inputs.knobs.get("gradient_checkpointing", False))
    kept = activations(
        inputs.shape,
        inputs.precision,
        inputs.text("attention", "sdpa"),
        checkpointing,
        inputs.is_gpu,
        inputs.tensor_parallel,
    )
    recomputed = kept.recomputed * inputs.shape.n_layer
    total = moved.total + activation_bytes(kept.saved - kept.casts + recomputed, inputs.passes)
    return total, "weights, gradients, optimizer and kept activations"


def _step(inputs: ModelInputs) -> list[Figure]:
    """Time of a step if memory were the only limit, and the share of the bandwidth that the step
    uses."""
    moved, bandwidth, taken = bytes_of_step(inputs), inputs.bytes_per_s, inputs.value("step_s")
    time = Figure(
        "bandwidth.step_s",
        "Time of a step if memory were the limit",
        "s",
        formula="bytes that must move / bandwidth",
    )
    share = Figure(
        "mbu.step", "MBU of a step", "ratio", formula="bytes that must move / step time / bandwidth"
    )
    if moved is None or bandwidth is None:
        why = f"not predicted: {NO_BANDWIDTH if moved else NO_COUNT}"
        time, share = with_note(time, why), with_note(share, why)
    else:
        least = moved[0] / bandwidth[0]
        time = replace(time, predicted=least, formula=f"{moved[1]}, each moved once, / bandwidth")
        if taken:
            share = replace(
                share, measured=least / taken, source=f"step breakdown over {bandwidth[1]}"
            )
        else:
            share = with_note(share, f"not measured: {NOT_STEADY}")
    return [inputs.with_measurement(time, "step_s", NOT_STEADY), share]


def _roofline(inputs: ModelInputs) -> list[Figure]:
    """The step's FLOPs per minimum byte, and the FLOP/s that the roofline allows at that
    intensity."""
    moved, peak, bandwidth = bytes_of_step(inputs), inputs.peak_flops_per_s, inputs.bytes_per_s
    sample = inputs.facts.get("flops_per_sample") or flops_per_sample(inputs)
    samples = inputs.samples_per_step
    formula = "model FLOPs / bytes that must move"
    intensity = Figure(
        "roofline.intensity",
        "Arithmetic intensity of a step",
        "FLOP/B",
        formula=formula,
        note=NO_TRAFFIC,
    )
    reach = Figure(
        "roofline.flops_per_s",
        "FLOP/s that the roofline allows a device",
        "FLOP/s",
        formula="min(peak, intensity x bandwidth)",
    )
    if not moved or not sample or not samples:
        why = (
            NO_COUNT if not moved else "the run has not counted FLOPs" if not sample else NOT_STEADY
        )
        why = f"not predicted: {why}"
        return [with_note(intensity, why), with_note(reach, why)]
    x = sample * samples / inputs.world / moved[0]
    intensity = replace(intensity, predicted=x)
    counted = inputs.summary.flops_per_s
    traffic = inputs.value("gpu.dram_active_ratio")
    if traffic and bandwidth and counted:
        measured = counted / inputs.world / (traffic * bandwidth[0])
        source = "FLOP/s over DRAM active x bandwidth"
        intensity = replace(intensity, measured=measured, source=source, note="")
    if peak is None or bandwidth is None:
        return [
            intensity,
            with_note(reach, f"not predicted: {NO_BANDWIDTH if peak else 'no peak is known'}"),
        ]
    each = peak[0] / inputs.world
    limit = (
        f"ridge at {ridge(each, bandwidth[0]):.3g} FLOP/B: {side(x, each, bandwidth[0])} is the"
        " limit"
    )
    reached = counted / inputs.world if counted else None
    return [
        with_note(intensity, limit),
        replace(
            reach,
            predicted=attainable(x, each, bandwidth[0]),
            measured=reached,
            source="step breakdown" if reached else "",
            note=limit,
        ),
    ]
