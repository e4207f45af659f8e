"""Bytes by part in each process, by closed formulas.

Parameters, gradients and optimizer states, with and without sharding; activations of our GPT, term by term as autograd saves them (torch 2.13).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuconsole.diagnosis.models.shape import GptShape, Tensor

# --- bytes by part in each process ---------------------------------------------------------------------------

FP32 = 4
BLOCK = 256
"""Elements that share one scale in an 8-bit optimizer (torchao 0.18, bitsandbytes)."""
LEAST_8BIT = 4096
"""Smaller tensors keep their states in fp32 (torchao, bitsandbytes)."""
FSDP_PASSES_AHEAD = 2
"""Units that FSDP2 holds gathered at the same time under zero3: the unit in use and the next unit."""


@dataclass(frozen=True)
class States:
    """Bytes that one process keeps from step to step. Gradients count at their maximum, after the backward pass."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def states(
    tensors: Iterable[Tensor], optim: str, sharding: str = "none", world: int = 1, rank: int = 0, tensor_parallel: int = 1
) -> States:
    """States of process `rank` of `world` data-parallel processes, each with its part of every matrix (`tensor_parallel`).

    none, ddp: no sharding. zero1: optimizer states by whole parameters, assigned greedily. zero2, zero3: FSDP2 shards parameters,
    gradients and states between steps. zero2 and zero3 differ in how long FSDP2 keeps parameters gathered (`gathered_bytes`).
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


def states_by_count(parameters: float, trained: float, optim: str, sharding: str = "none", world: int = 1) -> States:
    """States from the number of parameters alone, sharded evenly."""
    part = 1 / world if sharding in ("zero2", "zero3") else 1.0
    owned = trained / world if sharding in ("zero1", "zero2", "zero3") else trained
    return States(FP32 * parameters * part, FP32 * trained * part, optimizer_bytes(int(owned), optim))


def optimizer_bytes(elements: int, optim: str) -> float:
    """Optimizer state bytes of one tensor. AdamW: two moments and a step count. sgd: the momentum buffer. sgd_plain: nothing.

    adamw_8bit: one byte per moment, one scale per block and a table of 256 values, if the tensor is large enough and divides into
    blocks; otherwise the same as AdamW.
    """
    if elements == 0 or optim == "sgd_plain":
        return 0.0
    if optim == "sgd":
        return FP32 * elements
    if optim == "adamw_8bit" and elements >= LEAST_8BIT and elements % BLOCK == 0:
        return FP32 + 2 * (elements + FP32 * elements / BLOCK + FP32 * 256)
    return FP32 + 2 * FP32 * elements


def split_over(tensor: Tensor, processes: int) -> Tensor:
    """A process's part of a tensor under tensor parallelism."""
    if tensor.split is None or processes == 1:
        return tensor
    shape = tuple(size // processes if axis == tensor.split else size for axis, size in enumerate(tensor.shape))
    return replace(tensor, shape=shape)


def shard(tensor: Tensor, world: int, rank: int) -> Tensor:
    """FSDP2's shard: rows in chunks of ceil(rows / world). The last processes get the remaining rows, possibly none."""
    rows = tensor.shape[0]
    chunk = math.ceil(rows / world)
    return replace(tensor, shape=(max(0, min(chunk, rows - rank * chunk)), *tensor.shape[1:]))


def greedy_share(tensors: Sequence[Tensor], world: int, rank: int) -> list[Tensor]:
    """ZeroRedundancyOptimizer's partition: whole parameters, the largest first, each to the process with the fewest elements."""
    shares: list[list[Tensor]] = [[] for _ in range(world)]
    sizes = [0] * world
    for tensor in sorted(tensors, key=lambda tensor: tensor.elements, reverse=True):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(tensor)
        sizes[smallest] += tensor.elements
    return shares[rank]


def gathered_bytes(units: Sequence[float], sharding: str) -> float:
    """Maximum bytes of gathered parameters that FSDP2 holds in addition to the shards. `units`: bytes of each block and of the rest.

    zero2 keeps all units from the forward pass to the backward pass. zero3 keeps the unit in use and the next unit.
    """
    if sharding == "zero2":
        return float(sum(units))
    return float(sum(sorted(units)[-FSDP_PASSES_AHEAD:])) if sharding == "zero3" else 0.0


def fragmentation_bytes(reserved: float, allocated: float) -> float:
    """Bytes that the caching allocator has reserved and that no tensor uses."""
    return reserved - allocated


# --- activations that our GPT keeps for the backward pass, term by term as autograd saves them (torch 2.13) ---

FP32_BYTES, INT64_BYTES = 4, 8
EFFICIENT_ROWS = 32
"""The memory-efficient attention kernel (CUDA, fp32) pads its log-sum-exp to a multiple of this number of tokens."""


@dataclass(frozen=True)
class Activations:
    """Bytes, in the order of the forward pass: `embedding`, `blocks` (one figure per block), `head`.

    With checkpointing `blocks` counts only the inputs of the blocks, and `recomputed` is the maximum of one recomputed block.
    `casts` is the part of `saved` that consists of 16-bit copies of weights.
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
    shape: GptShape, precision: str, attention: str = "sdpa", checkpointing: bool = False, is_gpu: bool = False, tensor_parallel: int = 1
) -> Activations:
    """The activations of one forward pass in one process."""
    narrow = precision in ("bf16", "fp16")
    first, other = (block(shape, narrow, attention, is_gpu, tensor_parallel, index == 0) for index in (0, 1))
    blocks = tuple(first if index == 0 else other for index in range(shape.n_layer))
    lora = shape.lora_rank > 0
    rows, d = shape.rows, shape.d_model
    residual = rows * d * FP32_BYTES
    embedding = 0 if lora else shape.tokens * INT64_BYTES  # the position indices; the tokens belong to the batch
    matrix = 2 if narrow else FP32_BYTES
    head = residual + _norm_statistics(shape) + (0 if lora else rows * d * matrix)
    head_cast = 2 * shape.vocabulary * d if narrow else 0
    targets = shape.batch * shape.targets
    loss = targets * shape.vocabulary * FP32_BYTES + targets * INT64_BYTES + FP32_BYTES  # log-probabilities, targets, the sum of weights
    ends = Activations(embedding, (), head + head_cast + loss, casts=head_cast)
    if checkpointing:
        return Activations(ends.embedding, (residual,) * shape.n_layer, ends.head, max(blocks), ends.casts)
    casts = head_cast + sum(weight_casts(shape, tensor_parallel, index == 0) for index in range(shape.n_layer)) if narrow else 0
    return Activations(ends.embedding, blocks, ends.head, casts=casts)


def block(shape: GptShape, narrow: bool, attention: str, is_gpu: bool, tensor_parallel: int, first: bool) -> float:
    """Bytes that one block keeps."""
    rows, d, matrix = shape.rows, shape.d_model, 2 if narrow else FP32_BYTES
    lora = shape.lora_rank > 0
    norms = rows * d * FP32_BYTES + _norm_statistics(shape)
    if not (lora and first):  # nothing before the first block is trained, so its first norm needs no gradient
        norms *= 2
    inputs = 2 * rows * d * matrix  # of qkv and up
    split = 8 * rows * d * matrix  # of gelu and down, 4 d wide each
    adapters = 4 * rows * shape.lora_rank * matrix
    casts = weight_casts(shape, tensor_parallel, first) if narrow else 0
    mask = shape.tokens**2 if attention == "math" else 0
    return norms + inputs + adapters + casts + mask + (split + attention_bytes(shape, narrow, attention, is_gpu)) / tensor_parallel


def attention_bytes(shape: GptShape, narrow: bool, attention: str, is_gpu: bool) -> float:
    """q, k, v and the output (also the input of proj), plus the log-sum-exp of each row (sdpa) or all probabilities (math)."""
    matrix = 2 if narrow else FP32_BYTES
    kept = 4 * shape.rows * shape.d_model * matrix
    if attention != "math":
        tokens = shape.tokens
        if is_gpu and not narrow:
            tokens = -(-tokens // EFFICIENT_ROWS) * EFFICIENT_ROWS
        return kept + shape.batch * shape.heads * tokens * FP32_BYTES
    # on CUDA autocast computes softmax in fp32, and the product with v gets a 16-bit copy; on a CPU softmax stays in 16 bits
    return kept + shape.batch * shape.heads * shape.tokens**2 * (FP32_BYTES + 2 if is_gpu and narrow else matrix)


def weight_casts(shape: GptShape, tensor_parallel: int, first: bool) -> float:
    """16-bit copies of a block's weights that the backward pass needs for the gradient of its input."""
    d, rank = shape.d_model, shape.lora_rank
    if rank == 0:
        return 2 * 12 * d**2 / tensor_parallel
    return 2 * (12 * d**2 + 16 * rank * d - (3 * d**2 + rank * d if first else 0))


def _norm_statistics(shape: GptShape) -> int:
    """LayerNorm's mean and reciprocal standard deviation of each row, fp32."""
    return 2 * shape.rows * FP32_BYTES
