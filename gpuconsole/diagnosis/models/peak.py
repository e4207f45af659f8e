"""The most memory that a training step of our GPT holds at once, by walking through the step.

The peak is wherever states, activations not yet given back, gradients already there and an operation's own tensors add up to
the most: at the loss where activations are large, at the end of the backward pass or in the optimizer where weights are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuconsole.diagnosis.models.activations import Activations, weight_casts
from gpuconsole.diagnosis.models.memory import FP32, States
from gpuconsole.diagnosis.models.shape import GptShape


@dataclass(frozen=True)
class Pass:
    """How a step runs. `gradients_stay`: they are there throughout, as with accumulation or in DDP's buckets."""

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
    """`gathered`: whole parameters beside shards (FSDP2)."""
    always = states.parameters + states.optimizer + gathered
    if run.gradients_stay:
        return always + states.gradients + max(0.0, *_backward(shape, kept, run, 0.0), optimizer_working(states, run.optim))
    return always + max(*_backward(shape, kept, run, states.gradients), states.gradients + optimizer_working(states, run.optim))


def optimizer_working(states: States, optim: str) -> float:
    """What the update itself needs: foreach makes one new tensor for every gradient, fused none, one by one hardly any."""
    return states.gradients if optim == "adamw_foreach" else 0.0


def _backward(shape: GptShape, kept: Activations, run: Pass, gradients: float) -> Iterator[float]:
    """Bytes at the steepest places, from the loss back to the first block. `gradients`: those that come into being meanwhile."""
    logits = shape.batch * shape.targets * shape.vocabulary * FP32
    yield kept.saved + 2 * logits  # gradients of log-probabilities and of logits
    if kept.recomputed and run.matrix_bytes == 2 and not shape.lora_rank:
        # while it is open autocast holds the 16-bit copy of every trained weight, though no block keeps it
        yield kept.saved + logits + shape.n_layer * weight_casts(shape, run.tensor_parallel, False)
    residual, width = shape.rows * shape.d_model * FP32, shape.rows * shape.d_model * run.matrix_bytes / run.tensor_parallel
    in_block, in_ends = _gradients_by_part(shape, gradients)
    behind_gelu = (
        8 if shape.lora_rank else 4
    )  # an adapter passes on a gradient of its own, then there is their sum; its input is given back
    for index in reversed(range(shape.n_layer)):
        held = kept.embedding + sum(kept.blocks[: index + 1]) + in_ends + in_block * (shape.n_layer - 1 - index) + residual
        if kept.recomputed:
            held += kept.recomputed - residual  # the block's input is among both
        yield held + behind_gelu * width + residual
        mlp = 9 * width + residual
        yield held - mlp + in_block * 2 / 3 + residual + max(7 * width, _scores(shape, run))


def _scores(shape: GptShape, run: Pass) -> float:
    """Attention by its formula: the gradients of probabilities and of scores are there at once."""
    if run.attention == "sdpa":
        return 0.0
    wide = run.is_gpu and run.matrix_bytes == 2
    return 2 * shape.batch * shape.heads * shape.tokens**2 * (FP32 if wide else run.matrix_bytes) / run.tensor_parallel


def _gradients_by_part(shape: GptShape, gradients: float) -> tuple[float, float]:
    """Bytes in each block, and in the head, of those that come into being."""
    blocks, ends = 12 * shape.d_model**2 * shape.n_layer, shape.vocabulary * shape.d_model
    return gradients * blocks / (blocks + ends) / shape.n_layer, gradients * ends / (blocks + ends)
