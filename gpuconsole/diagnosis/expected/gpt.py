"""A step of our GPT, from the models of memory and FLOPs."""

from __future__ import annotations

from dataclasses import replace

from gpuconsole.diagnosis.expected.card import ALLREDUCE_S, DISK_BYTES_PER_S, LAUNCH_S, MATMUL_SHARE, Card
from gpuconsole.diagnosis.expected.work import Limit, Work
from gpuconsole.diagnosis.models.activations import activations
from gpuconsole.diagnosis.models.bandwidth import UPDATE_BYTES
from gpuconsole.diagnosis.models.collective import last_bucket_share, ring_s, sharding_s
from gpuconsole.diagnosis.models.figures.flops import flops_per_sample
from gpuconsole.diagnosis.models.figures.inputs import ModelInputs
from gpuconsole.diagnosis.models.figures.memory import predicted_peak, states_of
from gpuconsole.diagnosis.models.shape import VOCABULARY
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Summary

BLOCK_BYTES = {"off": 320, "compiled": 170}
"""Memory traffic of one block per token and unit of width beside the matrix products, forward and backward, in 16 bits: norms, casts, GELU,
residuals. Counted operation by operation (106 bytes in the forward pass, twice that in the backward pass); compiled, neighbours are fused."""
BLOCK_KERNELS = {"off": 62, "compiled": 22}
"""Operations of one block, forward and backward."""
SCORE_BYTES = 90
"""Memory traffic of one attention score with the plain formula, forward and backward: scaling, mask, fp32 softmax, casts, two products."""
UNFUSED_UPDATE_BYTES = 80
"""Memory traffic per parameter of AdamW as one operation after another (28 bytes fused)."""
UPDATE_KERNELS = 12
"""Operations of that update for each tensor."""
BLOCK_TENSORS = 12
HISTOGRAM_READS = 7
"""Values that logging reads from the device for each parameter's gradient, one after the other."""
READ_S = 60e-6
"""Time of one such read: a kernel, a synchronisation, and Python."""


def gpt_work(knobs: Knobs, card: Card) -> Work | None:
    """A step of the process with the most work; None where the card's peak at this precision is not known."""
    inputs = inputs_of(knobs, card)
    shape, precision = inputs.shape, inputs.precision
    peak = card.flops_per_s(precision)
    kept, per_sample = states_of(inputs), flops_per_sample(inputs)
    memory = predicted_peak(inputs, kept)
    if not peak or shape is None or kept is None or per_sample is None or memory is None or inputs.trained is None:
        return None
    mode = "off" if knobs.get("torch_compile", "off") == "off" else "compiled"
    passes, split = inputs.passes, inputs.tensor_parallel
    wide = 1.0 if precision in ("bf16", "fp16") else 1.5
    again = 4 / 3 if knobs.get("gradient_checkpointing") else 1.0
    tokens = shape.rows * passes
    matmul = per_sample * shape.batch * passes / split * again / (peak * MATMUL_SHARE)
    traffic = BLOCK_BYTES[mode] * wide * again * shape.d_model * shape.n_layer * tokens / split
    scores = (
        SCORE_BYTES * shape.batch * passes * shape.heads * shape.tokens**2 * shape.n_layer / split if knobs["attention"] == "math" else 0.0
    )
    casts = 8.0 * (inputs.parameters or 0.0) / split if wide == 1.0 else 0.0
    optimizer, update_launches = _update(inputs, knobs, kept.parameters / 4)
    work = Work(
        memory_bytes=memory,
        device_s={
            "arithmetic": matmul,
            "memory bandwidth": (traffic + scores + casts) / card.bytes_per_s,
            "optimizer": optimizer / card.bytes_per_s,
        },
        launch_s=LAUNCH_S * (BLOCK_KERNELS[mode] * shape.n_layer * passes * again + update_launches),
        figures={
            "states_bytes": kept.total,
            "activations_bytes": activations_bytes(inputs),
            "limit_bytes": limit_bytes(knobs, card),
            "flops": per_sample * shape.batch * passes / split,
            "peak_flops_per_s": peak,
            "scores_s": scores / card.bytes_per_s,
            "fused_update_s": (UPDATE_BYTES["adamw_fused"] * kept.parameters / 4) / card.bytes_per_s,
            "trained": inputs.trained,
            "compiled": float(mode == "compiled"),
        },
    )
    return replace(work, waits_s=_waits(inputs, knobs, card, work))


def inputs_of(knobs: Knobs, card: Card) -> ModelInputs:
    """The inputs of the models. Compilation only lowers the memory, so the model of the uncompiled step is an upper bound."""
    return ModelInputs({**knobs, "torch_compile": "off"}, {"vocabulary": float(VOCABULARY)}, {}, Summary(), card.peaks, {}, is_gpu=True)


def activations_bytes(inputs: ModelInputs) -> float:
    assert inputs.shape is not None
    checkpointing = bool(inputs.knobs.get("gradient_checkpointing", False))
    return activations(inputs.shape, inputs.precision, inputs.text("attention", "sdpa"), checkpointing, True, inputs.tensor_parallel).saved


def limit_bytes(knobs: Knobs, card: Card) -> float:
    """The memory limit of the run: `memory_limit_mb`, at most the card."""
    limit = int(knobs.get("memory_limit_mb", 0)) * 2.0**20
    return min(limit, card.memory_bytes) if limit else card.memory_bytes


def _update(inputs: ModelInputs, knobs: Knobs, parameters: float) -> tuple[float, float]:
    """Bytes of the optimizer's update in one process, and its launches."""
    optim, trained = str(knobs["optim"]), inputs.trained or 0.0
    share = trained / (inputs.parameters or trained)
    if optim == "adamw":
        return UNFUSED_UPDATE_BYTES * parameters * share, UPDATE_KERNELS * BLOCK_TENSORS * int(knobs["n_layer"])
    return UPDATE_BYTES.get(optim, 28.0) * parameters * share, 10.0


def _waits(inputs: ModelInputs, knobs: Knobs, card: Card, work: Work) -> dict[Limit, float]:
    """What a step waits for beside its computation."""
    found: dict[Limit, float] = {}
    exchanged = communication_s(inputs, knobs, card, max(work.busy_s - work.device_s["optimizer"], work.launch_s))
    if exchanged:
        found["communication"] = exchanged
    if knobs.get("straggler_ms"):
        found["the slow process"] = float(knobs["straggler_ms"]) / 1000 * inputs.passes
    if knobs.get("log_gradients"):
        found["logging"] = HISTOGRAM_READS * READ_S * BLOCK_TENSORS * int(knobs["n_layer"]) / max(1, int(knobs["log_every"]))
    if int(knobs.get("save_every", 0)):
        found["checkpoints"] = 12 * (inputs.trained or 0.0) / DISK_BYTES_PER_S / int(knobs["save_every"])
    return found


def communication_s(inputs: ModelInputs, knobs: Knobs, card: Card, passes_s: float) -> float:
    """Exposed communication of a step: what the backward pass does not hide, or the sums of split matrices.

    `passes_s`: seconds of the forward and backward passes.
    """
    shape = inputs.shape
    assert shape is not None
    rate = card.link_bytes_per_s
    found = 0.0
    if inputs.tensor_parallel > 1:
        partial = shape.rows * shape.d_model * 2.0  # a sum in 16 bits: two in the forward and two in the backward pass of each block
        each = max(ALLREDUCE_S, ring_s("all_reduce", partial, inputs.tensor_parallel, rate))
        found += 4 * shape.n_layer * inputs.passes * each
    sharding = str(knobs.get("sharding", "none"))
    if inputs.replicas > 1 and sharding != "none":
        gradients = 4.0 * (inputs.trained or 0.0) / inputs.tensor_parallel
        seconds = sharding_s(sharding, gradients, 4.0 * (inputs.parameters or 0.0), inputs.replicas, rate)
        last = last_bucket_share(gradients, float(knobs.get("bucket_cap_mb", 25.0))) if sharding == "ddp" else 0.0
        found += max(seconds * last, seconds - passes_s / inputs.passes * 2 / 3)  # the backward pass is two thirds of a pass
    return found
