"""What our GPT's forward pass keeps for its backward pass, term by term as autograd saves it (torch 2.13).

Counted are the bytes of all storages that saved tensors lie in, each once, parameters and the batch not among them: exactly what
`torch.autograd.graph.saved_tensors_hooks` sees. A test holds every term against it.

Under autocast a matrix's input is saved in 16 bits, and so is a copy of its weight; LayerNorm, the residual stream and the loss
stay fp32. Frozen weights (LoRA) save no input of their own, but the adapter beside them saves the same one.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuconsole.diagnosis.models.shape import GptShape

FP32, INT64 = 4, 8
EFFICIENT_ROWS = 32
"""The memory-efficient attention kernel (CUDA, fp32) pads its log-sum-exp to so many tokens."""


@dataclass(frozen=True)
class Activations:
    """Bytes. `embedding`, `blocks` and `head` follow one another in the forward pass; `blocks` holds one figure per block.

    With checkpointing `blocks` are the inputs only, and `recomputed` is the block that is being computed again, at its fullest.
    `casts` is the share of `saved` that is 16-bit copies of weights.
    """

    embedding: float
    blocks: tuple[float, ...]
    head: float
    recomputed: float = 0.0
    casts: float = 0.0

    @property
    def saved(self) -> float:
        """What is kept at the end of the forward pass."""
        return self.embedding + sum(self.blocks) + self.head


def activations(
    shape: GptShape, precision: str, attention: str = "sdpa", checkpointing: bool = False, is_gpu: bool = False, tensor_parallel: int = 1
) -> Activations:
    """Of one forward pass of one process."""
    narrow = precision in ("bf16", "fp16")
    first, other = (block(shape, narrow, attention, is_gpu, tensor_parallel, index == 0) for index in (0, 1))
    blocks = tuple(first if index == 0 else other for index in range(shape.n_layer))
    lora = shape.lora_rank > 0
    rows, d = shape.rows, shape.d_model
    residual = rows * d * FP32
    embedding = 0 if lora else shape.tokens * INT64  # the positions looked up; the tokens are the batch
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
    if not (lora and first):  # nothing before the first block is trained, so its first norm has nothing to pass on
        norms *= 2
    inputs = 2 * rows * d * matrix  # of qkv and up
    split = 8 * rows * d * matrix  # of gelu and down, 4 d wide each
    adapters = 4 * rows * shape.lora_rank * matrix
    casts = weight_casts(shape, tensor_parallel, first) if narrow else 0
    mask = shape.tokens**2 if attention == "math" else 0
    return norms + inputs + adapters + casts + mask + (split + attention_bytes(shape, narrow, attention, is_gpu)) / tensor_parallel


def attention_bytes(shape: GptShape, narrow: bool, attention: str, is_gpu: bool) -> float:
    """q, k, v and the output, which is also proj's input; and the log-sum-exp of each row, or all probabilities."""
    matrix = 2 if narrow else FP32
    kept = 4 * shape.rows * shape.d_model * matrix
    if attention == "sdpa":
        tokens = shape.tokens
        if is_gpu and not narrow:
            tokens = -(-tokens // EFFICIENT_ROWS) * EFFICIENT_ROWS
        return kept + shape.batch * shape.heads * tokens * FP32
    # on CUDA autocast computes softmax in fp32, and the product with v gets a 16-bit copy; on a CPU softmax stays in 16 bits
    return kept + shape.batch * shape.heads * shape.tokens**2 * (FP32 + 2 if is_gpu and narrow else matrix)


def weight_casts(shape: GptShape, tensor_parallel: int, first: bool) -> float:
    """16-bit copies of a block's weights that the backward pass needs to pass its gradient on."""
    d, rank = shape.d_model, shape.lora_rank
    if rank == 0:
        return 2 * 12 * d**2 / tensor_parallel
    return 2 * (12 * d**2 + 16 * rank * d - (3 * d**2 + rank * d if first else 0))


def _norm_statistics(shape: GptShape) -> int:
    """LayerNorm's mean and reciprocal standard deviation of each row, fp32."""
    return 2 * shape.rows * FP32
