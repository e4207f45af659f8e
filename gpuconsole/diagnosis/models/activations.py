"""Activations that our GPT keeps for the backward pass, term by term as autograd saves them (torch 2.13).

The count is the bytes of all storages of saved tensors, each storage once, without parameters and the batch: the same tensors that
`torch.autograd.graph.saved_tensors_hooks` receives. A test compares every term with these hooks.

Under autocast, autograd saves a matrix's input and a copy of its weight in 16 bits. LayerNorm, the residual stream and the loss
stay fp32. A frozen weight (LoRA) saves no input, but its adapter saves the same input.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuconsole.diagnosis.models.shape import GptShape

FP32, INT64 = 4, 8
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
    residual = rows * d * FP32
    embedding = 0 if lora else shape.tokens * INT64  # the position indices; the tokens belong to the batch
    matrix = 2 if narrow else FP32
    head = residual + _norm_statistics(shape) + (0 if lora else rows * d * matrix)
    head_cast = 2 * shape.vocabulary * d if narrow else 0
    targets = shape.batch * shape.targets
    loss = targets * shape.vocabulary * FP32 + targets * INT64 + FP32  # log-probabilities, targets, the sum of weights
    ends = Activations(embedding, (), head + head_cast + loss, casts=head_cast)
    if checkpointing:
        return Activations(ends.embedding, (residual,) * shape.n_layer, ends.head, max(blocks), ends.casts)
    casts = head_cast + sum(weight_casts(shape, tensor_parallel, index == 0) for index in range(shape.n_layer)) if narrow else 0
    return Activations(ends.embedding, blocks, ends.head, casts=casts)


def block(shape: GptShape, narrow: bool, attention: str, is_gpu: bool, tensor_parallel: int, first: bool) -> float:
    """Bytes that one block keeps."""
    rows, d, matrix = shape.rows, shape.d_model, 2 if narrow else FP32
    lora = shape.lora_rank > 0
    norms = rows * d * FP32 + _norm_statistics(shape)
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
    matrix = 2 if narrow else FP32
    kept = 4 * shape.rows * shape.d_model * matrix
    if attention != "math":
        tokens = shape.tokens
        if is_gpu and not narrow:
            tokens = -(-tokens // EFFICIENT_ROWS) * EFFICIENT_ROWS
        return kept + shape.batch * shape.heads * tokens * FP32
    # on CUDA autocast computes softmax in fp32, and the product with v gets a 16-bit copy; on a CPU softmax stays in 16 bits
    return kept + shape.batch * shape.heads * shape.tokens**2 * (FP32 + 2 if is_gpu and narrow else matrix)


def weight_casts(shape: GptShape, tensor_parallel: int, first: bool) -> float:
    """16-bit copies of a block's weights that the backward pass needs for the gradient of its input."""
    d, rank = shape.d_model, shape.lora_rank
    if rank == 0:
        return 2 * 12 * d**2 / tensor_parallel
    return 2 * (12 * d**2 + 16 * rank * d - (3 * d**2 + rank * d if first else 0))


def _norm_statistics(shape: GptShape) -> int:
    """LayerNorm's mean and reciprocal standard deviation of each row, fp32."""
    return 2 * shape.rows * FP32
