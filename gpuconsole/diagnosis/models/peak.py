"""Peak memory of a training step of our GPT, from a walk through the step.

The peak is the largest sum of states, activations not yet freed, existing gradients and temporary tensors of an operation. With
large activations the peak is at the loss. With large weights it is at the end of the backward pass or in the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuconsole.diagnosis.models.memory import FP32, Activations, States, weight_casts
from gpuconsole.diagnosis.models.shape import GptShape


@dataclass(frozen=True)
class Pass:
    """Properties of a step. `gradients_stay`: gradients exist during the whole step, as with accumulation or DDP's buckets."""

    precision: str
    attention: str
    optim: str
    gradients_stay: bool
    is_gpu: bool
    tensor_parallel: int = 1

    @property
    def matrix_bytes(self) -> int:
        return 2 if self.precision in ("bf16", "fp16") else FP32


def peak_bytes(shape: GptShape, states: States, kept: Activations, run: Pass, gathered: float = 0.0) -> float:
    """Peak bytes of a step. `gathered`: bytes of gathered parameters in addition to shards (FSDP2)."""
    always = states.parameters + states.optimizer + gathered
    if run.gradients_stay:
        return always + states.gradients + max(0.0, *_backward(shape, kept, run, 0.0), optimizer_working(states, run.optim))
    return always + max(*_backward(shape, kept, run, states.gradients), states.gradients + optimizer_working(states, run.optim))


def optimizer_working(states: States, optim: str) -> float:
    """Temporary bytes of the update: foreach allocates one tensor per gradient, fused allocates none, the loop almost none."""
    return states.gradients if optim == "adamw_foreach" else 0.0


def _backward(shape: GptShape, kept: Activations, run: Pass, gradients: float) -> Iterator[float]:
    """Bytes at the candidate peaks, from the loss back to the first block. `gradients`: bytes of gradients allocated on the way."""
    logits = shape.batch * shape.targets * shape.vocabulary * FP32
    yield kept.saved + 2 * logits  # gradients of log-probabilities and of logits
    if kept.recomputed and run.matrix_bytes == 2 and not shape.lora_rank:
        # inside its context autocast holds the 16-bit copy of every trained weight, although no block keeps it
        yield kept.saved + logits + shape.n_layer * weight_casts(shape, run.tensor_parallel, False)
    residual, width = shape.rows * shape.d_model * FP32, shape.rows * shape.d_model * run.matrix_bytes / run.tensor_parallel
    in_block, in_ends = _gradients_by_part(shape, gradients)
    behind_gelu = 8 if shape.lora_rank else 4  # an adapter adds its own input gradient and the sum of both; its input is freed
    for index in reversed(range(shape.n_layer)):
        held = kept.embedding + sum(kept.blocks[: index + 1]) + in_ends + in_block * (shape.n_layer - 1 - index) + residual
        if kept.recomputed:
            held += kept.recomputed - residual  # both counts include the input of the block
        yield held + behind_gelu * width + residual
        mlp = 9 * width + residual
        yield held - mlp + in_block * 2 / 3 + residual + max(7 * width, _scores(shape, run))


def _scores(shape: GptShape, run: Pass) -> float:
    """Attention by the plain formula: the gradients of probabilities and of scores exist at the same time."""
    if run.attention != "math":
        return 0.0
    wide = run.is_gpu and run.matrix_bytes == 2
    return 2 * shape.batch * shape.heads * shape.tokens**2 * (FP32 if wide else run.matrix_bytes) / run.tensor_parallel


def _gradients_by_part(shape: GptShape, gradients: float) -> tuple[float, float]:
    """Bytes of gradients that each block, and the head, allocates."""
    blocks, ends = 12 * shape.d_model**2 * shape.n_layer, shape.vocabulary * shape.d_model
    return gradients * blocks / (blocks + ends) / shape.n_layer, gradients * ends / (blocks + ends)
