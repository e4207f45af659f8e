"""Memory of each process by part: predictions by closed formulas, next to the figures of the
allocator and of autograd.

Parameters, gradients and optimizer states, with and without sharding; activations of our GPT, term
by term as autograd saves them (torch 2.13); the peak of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as copy_with

from msgspec.structs import replace

from gpuconsole.diagnosis.models.inputs import (
    FP32,
    GptShape,
    ModelInputs,
    ParameterTensor,
    with_note,
)
from gpuconsole.model.figures import Figure
from gpuconsole.model.text import percent

# --- bytes by part in each process ----------------------------------------------------------------

UPDATE_BYTES: dict[str, float] = {
    # reads weight, gradient and two moments, writes weight and moments: 7 values of 4 bytes
    "adamw": 28,
    "adamw_foreach": 28,
    "adamw_fused": 28,
    "sgd_plain": 12,  # reads weight and gradient, writes weight
    "sgd": 20,  # reads weight, gradient and momentum, writes weight and momentum
    "adamw_8bit": 16 + 4 * FP32 / 256,  # moments of 1 byte, and one scale for 256 moments
}
"""Minimum bytes per parameter of one update. Unfused implementations move more bytes, because each
operation reads and writes separately."""
BLOCK = 256
"""Elements that share one scale in an 8-bit optimizer (torchao 0.18, bitsandbytes)."""
MIN_8BIT_ELEMENTS = 4096
"""Smaller tensors keep their states in fp32 (torchao, bitsandbytes)."""
FSDP_PASSES_AHEAD = 2
"""Units that FSDP2 holds gathered at the same time under zero3: the unit in use and the next
unit."""


@dataclass(frozen=True)
class States:
    """Bytes that one process keeps from step to step. Gradients count at their maximum, after the
    backward pass."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def states(
    tensors: Iterable[ParameterTensor],
    optim: str,
    sharding: str = "none",
    world: int = 1,
    rank: int = 0,
    tensor_parallel: int = 1,
) -> States:
    """States of process `rank` of `world` data-parallel processes, each with its part of every
    matrix (`tensor_parallel`).

    none, ddp: no sharding. zero1: optimizer states by whole parameters, assigned greedily. zero2,
    zero3: FSDP2 shards parameters, gradients and states between steps. zero2 and zero3 differ in
    how long FSDP2 keeps parameters gathered (`gathered_bytes`).
    """
    local = [split_over(tensor, tensor_parallel) for tensor in tensors]
    if sharding in ("zero2", "zero3"):
        local = [shard(tensor, world, rank) for tensor in local]
    trained = [tensor for tensor in local if tensor.trained]
    owned = greedy_share(trained, world, rank) if sharding == "zero1" else trained
    return States(
        parameters=FP32 * sum(tensor.elements for tensor in local),
        gradients=FP32 * sum(tensor.elements for tensor in trained),
        optimizer=sum(optimizer_bytes(tensor.elements, optim) for tensor in owned),
    )


def states_by_count(
    parameters: float,
    trained: float,
    optim: str,
    sharding: str = "none",
    world: int = 1,
    element: float = FP32,
    of_trained: float = FP32,
) -> States:
    """States from the number of parameters alone, sharded evenly. `element`, `of_trained`: bytes of
    a parameter, and of a trained one."""
    part = 1 / world if sharding in ("zero2", "zero3") else 1.0
    owned = trained / world if sharding in ("zero1", "zero2", "zero3") else trained
    wide = 1.0 if optim == "adamw_8bit" else of_trained / FP32
    return States(
        element * parameters * part,
        of_trained * trained * part,
        wide * optimizer_bytes(int(owned), optim),
    )


def optimizer_bytes(elements: int, optim: str) -> float:
    """Optimizer state bytes of one tensor. AdamW: two moments and a step count. sgd: the momentum
    buffer. sgd_plain: nothing.

    adamw_8bit: one byte per moment, one scale per block and a table of 256 values, if the tensor is
    large enough and divides into blocks; otherwise the same as AdamW.
    """
    if elements == 0 or optim == "sgd_plain":
        return 0.0
    if optim == "sgd":
        return FP32 * elements
    if optim == "adamw_8bit" and elements >= MIN_8BIT_ELEMENTS and elements % BLOCK == 0:
        return FP32 + 2 * (elements + FP32 * elements / BLOCK + FP32 * 256)
    return FP32 + 2 * FP32 * elements


def split_over(tensor: ParameterTensor, processes: int) -> ParameterTensor:
    """A process's part of a tensor under tensor parallelism."""
    if tensor.split is None or processes == 1:
        return tensor
    shape = tuple(
        size // processes if axis == tensor.split else size
        for axis, size in enumerate(tensor.shape)
    )
    return copy_with(tensor, shape=shape)


def shard(tensor: ParameterTensor, world: int, rank: int) -> ParameterTensor:
    """FSDP2's shard: rows in chunks of ceil(rows / world). The last processes get the remaining
    rows, possibly none."""
    rows = tensor.shape[0]
    chunk = math.ceil(rows / world)
    return copy_with(tensor, shape=(max(0, min(chunk, rows - rank * chunk)), *tensor.shape[1:]))


def greedy_share(
    tensors: Sequence[ParameterTensor], world: int, rank: int
) -> list[ParameterTensor]:
    """ZeroRedundancyOptimizer's partition: whole parameters, the largest first, each to the process
    with the fewest elements."""
    shares: list[list[ParameterTensor]] = [[] for _ in range(world)]
    sizes = [0] * world
    for tensor in sorted(tensors, key=lambda tensor: tensor.elements, reverse=True):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(tensor)
        sizes[smallest] += tensor.elements
    return shares[rank]


def gathered_bytes(units: Sequence[float], sharding: str) -> float:
    """Maximum bytes of gathered parameters that FSDP2 holds in addition to the shards. `units`:
    bytes of each block and of the rest.

    zero2 keeps all units from the forward pass to the backward pass. zero3 keeps the unit in use
    and the next unit.
    """
    if sharding == "zero2":
        return float(sum(units))
    return float(sum(sorted(units)[-FSDP_PASSES_AHEAD:])) if sharding == "zero3" else 0.0


# --- activations that our GPT keeps for the backward pass, term by term as autograd saves them
# (torch 2.13) ---

INT64 = 8
EFFICIENT_ROWS = 32
"""The memory-efficient attention kernel (CUDA, fp32) pads its log-sum-exp to a multiple of this
number of tokens."""


@dataclass(frozen=True)
class Activations:
    """Bytes, in the order of the forward pass: `embedding`, `blocks` (one figure per block),
    `head`.

    With checkpointing `blocks` counts only the inputs of the blocks, and `recomputed` is the
    maximum of one recomputed block. `casts` is the part of `saved` that consists of 16-bit copies
    of weights.
    """

    embedding: float
    blocks: tuple[float, ...]
    head: float
    recomputed: float = 0.0
    casts: float = 0.0

    @property
    def saved(self) -> float:
        """Bytes kept at the end of the forward pass."""
        return self.embedding + sum(self.blocks) + self.head


def activations(
    shape: GptShape,
    precision: str,
    attention: str = "sdpa",
    checkpointing: bool = False,
    is_gpu: bool = False,
    tensor_parallel: int = 1,
) -> Activations:
    """The activations of one forward pass in one process."""
    narrow = precision in ("bf16", "fp16")
    first, other = (
        block(shape, narrow, attention, is_gpu, tensor_parallel, index == 0) for index in (0, 1)
    )
    blocks = tuple(first if index == 0 else other for index in range(shape.n_layer))
    lora = shape.lora_rank > 0
    rows, d = shape.rows, shape.d_model
    residual = rows * d * FP32
    # the position indices; the tokens belong to the batch
    embedding = 0 if lora else shape.tokens * INT64
    matrix = 2 if narrow else FP32
    head = residual + _norm_statistics(shape) + (0 if lora else rows * d * matrix)
    head_cast = 2 * shape.vocabulary * d if narrow else 0
    targets = shape.batch * shape.targets
    # log-probabilities, targets, the sum of weights
    loss = targets * shape.vocabulary * FP32 + targets * INT64 + FP32
    ends = Activations(embedding, (), head + head_cast + loss, casts=head_cast)
    if checkpointing:
        return Activations(
            ends.embedding, (residual,) * shape.n_layer, ends.head, max(blocks), ends.casts
        )
    casts = (
        head_cast
        + sum(weight_casts(shape, tensor_parallel, index == 0) for index in range(shape.n_layer))
        if narrow
        else 0
    )
    return Activations(ends.embedding, blocks, ends.head, casts=casts)


def block(
    shape: GptShape, narrow: bool, attention: str, is_gpu: bool, tensor_parallel: int, first: bool
) -> float:
    """Bytes that one block keeps."""
    rows, d, matrix = shape.rows, shape.d_model, 2 if narrow else FP32
    lora = shape.lora_rank > 0
    norms = rows * d * FP32 + _norm_statistics(shape)
    # nothing before the first block is trained, so its first norm needs no gradient
    if not (lora and first):
        norms *= 2
    inputs = 2 * rows * d * matrix  # of qkv and up
    split = 8 * rows * d * matrix  # of gelu and down, 4 d wide each
    adapters = 4 * rows * shape.lora_rank * matrix
    casts = weight_casts(shape, tensor_parallel, first) if narrow else 0
    mask = shape.tokens**2 if attention == "math" else 0
    return (
        norms
        + inputs
        + adapters
        + casts
        + mask
        + (split + attention_bytes(shape, narrow, attention, is_gpu)) / tensor_parallel
    )


def attention_bytes(shape: GptShape, narrow: bool, attention: str, is_gpu: bool) -> float:
    """q, k, v and the output (also the input of proj), plus the log-sum-exp of each row (sdpa) or
    all probabilities (math)."""
    matrix = 2 if narrow else FP32
    kept = 4 * shape.rows * shape.d_model * matrix
    if attention != "math":
        tokens = shape.tokens
        if is_gpu and not narrow:
            tokens = -(-tokens // EFFICIENT_ROWS) * EFFICIENT_ROWS
        return kept + shape.batch * shape.heads * tokens * FP32
    # on CUDA autocast computes softmax in fp32, and the product with v gets a 16-bit copy; on a CPU
    # softmax stays in 16 bits
    return kept + shape.batch * shape.heads * shape.tokens**2 * (
        FP32 + 2 if is_gpu and narrow else matrix
    )


def weight_casts(shape: GptShape, tensor_parallel: int, first: bool) -> float:
    """16-bit copies of a block's weights that the backward pass needs for the gradient of its
    input."""
    d, rank = shape.d_model, shape.lora_rank
    if rank == 0:
        return 2 * 12 * d**2 / tensor_parallel
    return 2 * (12 * d**2 + 16 * rank * d - (3 * d**2 + rank * d if first else 0))


def _norm_statistics(shape: GptShape) -> int:
    """LayerNorm's mean and reciprocal standard deviation of each row, fp32."""
    return 2 * shape.rows * FP32


# --- the peak of a training step of our GPT, from a walk through the step -------------------------

# The peak is the largest sum of states, activations not yet freed, existing gradients and temporary
# tensors of an operation. With large activations the peak is at the loss. With large weights it is
# at the end of the backward pass or in the optimizer.


@dataclass(frozen=True)
class Pass:
    """Properties of a step. `gradients_stay`: gradients exist during the whole step, as with
    accumulation or DDP's buckets."""

    precision: str
    attention: str
    optim: str
    gradients_stay: bool
    is_gpu: bool
    tensor_parallel: int = 1

    @property
    def matrix_bytes(self) -> int:
        return 2 if self.precision in ("bf16", "fp16") else FP32


def peak_bytes(
    shape: GptShape, states: States, kept: Activations, run: Pass, gathered: float = 0.0
) -> float:
    """Peak bytes of a step. `gathered`: bytes of gathered parameters in addition to shards
    (FSDP2)."""
    always = states.parameters + states.optimizer + gathered
    if run.gradients_stay:
        return (
            always
            + states.gradients
            + max(0.0, *_backward(shape, kept, run, 0.0), optimizer_working(states, run.optim))
        )
    return always + max(
        *_backward(shape, kept, run, states.gradients),
        states.gradients + optimizer_working(states, run.optim),
    )


def optimizer_working(states: States, optim: str) -> float:
    """Temporary bytes of the update: foreach allocates one tensor per gradient, fused allocates
    none, the loop almost none."""
    return states.gradients if optim == "adamw_foreach" else 0.0


def _backward(shape: GptShape, kept: Activations, run: Pass, gradients: float) -> Iterator[float]:
    """Bytes at the candidate peaks, from the loss back to the first block. `gradients`: bytes of
    gradients allocated on the way."""
    logits = shape.batch * shape.targets * shape.vocabulary * FP32
    yield kept.saved + 2 * logits  # gradients of log-probabilities and of logits
    if kept.recomputed and run.matrix_bytes == 2 and not shape.lora_rank:
        # inside its context autocast holds the 16-bit copy of every trained weight, although no
        # block keeps it
        yield kept.saved + logits + shape.n_layer * weight_casts(shape, run.tensor_parallel, False)
    residual, width = (
        shape.rows * shape.d_model * FP32,
        shape.rows * shape.d_model * run.matrix_bytes / run.tensor_parallel,
    )
    in_block, in_ends = _gradients_by_part(shape, gradients)
    # an adapter adds its own input gradient and the sum of both; its input is freed
    behind_gelu = 8 if shape.lora_rank else 4
    for index in reversed(range(shape.n_layer)):
        held = (
            kept.embedding
            + sum(kept.blocks[: index + 1])
            + in_ends
            + in_block * (shape.n_layer - 1 - index)
            + residual
        )
        if kept.recomputed:
            held += kept.recomputed - residual  # both counts include the input of the block
        yield held + behind_gelu * width + residual
        mlp = 9 * width + residual
        yield held - mlp + in_block * 2 / 3 + residual + max(7 * width, _scores(shape, run))


def _scores(shape: GptShape, run: Pass) -> float:
    """Attention by the plain formula: the gradients of probabilities and of scores exist at the
    same time."""
    if run.attention != "math":
        return 0.0
    wide = run.is_gpu and run.matrix_bytes == 2
    return (
        2
        * shape.batch
        * shape.heads
        * shape.tokens**2
        * (FP32 if wide else run.matrix_bytes)
        / run.tensor_parallel
    )


def _gradients_by_part(shape: GptShape, gradients: float) -> tuple[float, float]:
    """Bytes of gradients that each block, and the head, allocates."""
    blocks, ends = 12 * shape.d_model**2 * shape.n_layer, shape.vocabulary * shape.d_model
    return gradients * blocks / (blocks + ends) / shape.n_layer, gradients * ends / (blocks + ends)


# --- the figures of a run -------------------------------------------------------------------------

NOT_YET = "the probe measures memory by part after the run is steady"
NO_ALLOCATOR = "a CPU has no allocator statistics"
NO_COUNT = "not predicted: the number of parameters is not known"
NO_SHAPE = "not predicted: the models cover the activations of our GPT only"
COMPILED = "not predicted: torch.compile chooses what to keep and what to recompute"
IN_FP8 = "not predicted: matrix products in fp8 keep other tensors"
SHARDED = {
    "none": "",
    "ddp": "",
    "zero1": "; states by whole parameters, assigned greedily (ZeroRedundancyOptimizer)",
    "zero2": "; shards of rows (FSDP2 also shards parameters between steps under zero2)",
    "zero3": "; shards of rows (FSDP2)",
}


def memory_figures(inputs: ModelInputs) -> list[Figure]:
    """Memory of the first process: parameters, gradients, optimizer states, activations, the peak,
    and unused reserved memory."""
    if not inputs.trains:
        return []
    kept = states_of(inputs)
    return [
        *_state_figures(inputs, kept),
        _activations(inputs),
        _peak(inputs, kept),
        _fragmentation(inputs),
    ]


def states_of(inputs: ModelInputs) -> States | None:
    """Predicted states of the first process; None where the number of parameters is not known."""
    optim, sharding = inputs.text("optim", "adamw_fused"), inputs.text("sharding", "none")
    if inputs.tensors is not None:
        return states(inputs.tensors, optim, sharding, inputs.replicas, 0, inputs.tensor_parallel)
    if inputs.parameters is None or inputs.trained is None or inputs.tensor_parallel > 1:
        return None
    here = inputs.local_ratio  # a job with sharded parameters, by whatever library
    return states_by_count(
        inputs.parameters * here,
        inputs.trained * here,
        optim,
        sharding if here == 1 else "none",
        inputs.replicas,
        inputs.element_bytes,
        inputs.trained_bytes,
    )


def exchanged_bytes(inputs: ModelInputs) -> tuple[float, float] | None:
    """Return the bytes of gradients and parameters that a process exchanges with the others,
    whatever they shard: under tensor parallelism those of its part of the matrices. None where the
    number of parameters is not known."""
    if inputs.tensors is not None:
        whole = states(inputs.tensors, "sgd_plain", tensor_parallel=inputs.tensor_parallel)
        return whole.gradients, whole.parameters
    if inputs.trained is None:
        return None
    part = inputs.trained_bytes / inputs.tensor_parallel
    return part * inputs.trained, part * (inputs.parameters or inputs.trained)


def _state_figures(inputs: ModelInputs, kept: States | None) -> list[Figure]:
    where = SHARDED[inputs.text("sharding", "none")] + (
        "; matrices split (tensor parallel)" if inputs.tensor_parallel > 1 else ""
    )
    if inputs.local_ratio < 1:
        where += f"; this process has {percent(inputs.local_ratio)} of them"
    each = f"{inputs.trained_bytes:.3g} B"
    kept_by = {
        "sgd_plain": "no state",
        "sgd": f"{each} x trained (momentum)",
        "adamw_8bit": "2 B x trained, and a scale for each 256",
    }
    moments = f"{2 * inputs.trained_bytes:.3g} B x trained (two moments)"
    formulas = {
        "parameters": f"{inputs.element_bytes:.3g} B x parameters{where}",
        "gradients": f"{each} x trained parameters{where}",
        "optimizer": f"{kept_by.get(inputs.text('optim', ''), moments)}{where}",
    }
    titles = {"parameters": "Parameters", "gradients": "Gradients", "optimizer": "Optimizer states"}
    figures = []
    for part, formula in formulas.items():
        predicted = getattr(kept, part) if kept else None
        note = "" if kept else NO_COUNT
        if (
            part == "optimizer"
            and (optim := inputs.text("optim", "adamw_fused")) not in UPDATE_BYTES
        ):
            predicted, note = None, f"not predicted: no model for the optimizer {optim}"
        if part == "gradients" and inputs.knobs.get("sparse"):
            predicted, note = (
                None,
                "not predicted: the size of sparse gradients depends on the rows in the batch",
            )
        figure = Figure(
            f"memory.{part}_bytes",
            titles[part],
            "bytes",
            predicted=predicted,
            formula=formula,
            note=note,
        )
        figures.append(inputs.with_measurement(figure, figure.name, NOT_YET))
    return figures


def _activations(inputs: ModelInputs) -> Figure:
    figure = Figure("memory.activations_bytes", "Activations kept for the backward pass", "bytes")
    kept = None
    if inputs.shape is None or not inputs.keeps_as_autograd:
        figure = with_note(figure, _why_unknown(inputs))
    else:
        kept = activations(*_activation_arguments(inputs, inputs.shape))
        formula = "saved tensors of our GPT, term by term; each block keeps " + (
            "its input" if kept.recomputed else "16 d values per token, and more"
        )
        figure = replace(figure, predicted=kept.saved, formula=formula)
        if inputs.knobs.get("varied_lengths"):
            figure = with_note(
                figure, "the prediction is for the longest sequence, the measurement for one batch"
            )
        if kept.recomputed:
            figure = with_note(
                figure, f"the recomputed block adds {kept.recomputed:.4g} B in the backward pass"
            )
    return inputs.with_measurement(figure, figure.name, NOT_YET)


def _why_unknown(inputs: ModelInputs) -> str:
    return COMPILED if inputs.is_compiled else NO_SHAPE if inputs.keeps_as_autograd else IN_FP8


def _activation_arguments(
    inputs: ModelInputs, shape: GptShape
) -> tuple[GptShape, str, str, bool, bool, int]:
    checkpointing = bool(inputs.knobs.get("gradient_checkpointing", False))
    return (
        shape,
        inputs.precision,
        inputs.text("attention", "sdpa"),
        checkpointing,
        inputs.is_gpu,
        inputs.tensor_parallel,
    )


def predicted_peak(inputs: ModelInputs, kept: States | None) -> float | None:
    """Peak bytes of a step; None where the model is not valid."""
    if (
        inputs.shape is None
        or inputs.tensors is None
        or kept is None
        or not inputs.keeps_as_autograd
    ):
        return None
    sharding = inputs.text("sharding", "none")
    run = Pass(
        precision=inputs.precision,
        attention=inputs.text("attention", "sdpa"),
        optim=inputs.text("optim", "adamw_fused"),
        gradients_stay=inputs.passes > 1 or sharding in ("ddp", "zero1"),
        is_gpu=inputs.is_gpu,
        tensor_parallel=inputs.tensor_parallel,
    )
    gathered = gathered_bytes(_units(inputs.tensors, inputs.shape.n_layer), sharding)
    return peak_bytes(
        inputs.shape, kept, activations(*_activation_arguments(inputs, inputs.shape)), run, gathered
    )


def _units(tensors: list[ParameterTensor], n_layer: int) -> list[float]:
    """Bytes of each unit that FSDP2 gathers: each block, and the rest. The two embeddings are
    first, norm and head are last."""
    each = (len(tensors) - 5) // n_layer
    blocks = [tensors[2 + index * each : 2 + (index + 1) * each] for index in range(n_layer)]
    rest = [*tensors[:2], *tensors[-3:]]
    return [FP32 * float(sum(tensor.elements for tensor in unit)) for unit in (*blocks, rest)]


def _peak(inputs: ModelInputs, kept: States | None) -> Figure:
    predicted = predicted_peak(inputs, kept)
    formula = "the largest sum of states, activations and temporary tensors"
    note = (
        "without workspaces of libraries (cuBLAS: tens of MiB)"
        if predicted is not None and inputs.is_gpu
        else ""
    )
    figure = Figure(
        "memory.allocated_peak_bytes", "Peak memory", "bytes", predicted, formula=formula, note=note
    )
    if predicted is None:
        figure = with_note(
            figure, NO_COUNT if kept is None and inputs.keeps_as_autograd else _why_unknown(inputs)
        )
    return inputs.with_measurement(figure, figure.name, NOT_YET if inputs.is_gpu else NO_ALLOCATOR)


def _fragmentation(inputs: ModelInputs) -> Figure:
    """Torch's own count. Reserved memory beyond the allocated peak is also cache, and a program may
    reset the peaks."""
    figure = Figure(
        "memory.fragmentation_bytes",
        "Free parts of segments in use",
        "bytes",
        formula="inactive split bytes between two steps",
        note="not predicted: fragmentation depends on the order of allocations",
    )
    return inputs.with_measurement(
        figure, "memory.inactive_split_bytes", NOT_YET if inputs.is_gpu else NO_ALLOCATOR
    )
