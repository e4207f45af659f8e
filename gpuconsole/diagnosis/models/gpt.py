"""Our GPT from its knobs: dimensions of a forward pass, every parameter tensor, and the parameters in matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuconsole.model.knobs.catalogue import Knobs

HEAD_SIZE = 64
VOCABULARY = 256
"""The workload's tokens are bytes."""
FEWEST_POSITIONS = 1024
SHORTEST = 4
"""With `varied_lengths` a sequence has at least seq_len / SHORTEST tokens."""


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor. `split` is the dimension that tensor parallelism splits; None: each process has the whole tensor."""

    shape: tuple[int, ...]
    trained: bool = True
    split: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GptShape:
    """One process's forward pass: `batch` sequences of `tokens` (padding included) of which `targets` count."""

    batch: int
    tokens: int
    targets: int
    d_model: int
    n_layer: int
    vocabulary: int
    lora_rank: int = 0

    @property
    def heads(self) -> int:
        return max(1, self.d_model // HEAD_SIZE)

    @property
    def rows(self) -> int:
        """Tokens in one forward pass through a block."""
        return self.batch * self.tokens


def gpt_shape(knobs: Knobs, vocabulary: int) -> GptShape:
    """The shape at these knobs. With `varied_lengths` the shape of the longest sequence, which decides about memory."""
    tokens, multiple = int(knobs["seq_len"]), int(knobs.get("pad_to_multiple_of", 0))
    return GptShape(
        batch=int(knobs["batch_size"]),
        tokens=math.ceil(tokens / multiple) * multiple if multiple else tokens,
        targets=tokens,
        d_model=int(knobs["d_model"]),
        n_layer=int(knobs["n_layer"]),
        vocabulary=vocabulary,
        lora_rank=int(knobs.get("lora_rank", 0)) if knobs.get("peft", "none") == "lora" else 0,
    )


def lengths(knobs: Knobs) -> tuple[int, int]:
    """The shortest and the longest sequence in tokens; all between are equally likely."""
    longest = int(knobs["seq_len"])
    return max(1, longest // SHORTEST) if knobs.get("varied_lengths") else longest, longest


def first_positions(seq_len: int) -> int:
    """Rows of the position embedding of a workload that starts with this seq_len."""
    return max(FEWEST_POSITIONS, 4 * seq_len)


def gpt_tensors(shape: GptShape, positions: int) -> list[Tensor]:
    """Every parameter in the model's own order."""
    d, full = shape.d_model, shape.lora_rank == 0
    matrices = ((3 * d, d, 0), (d, d, 1), (4 * d, d, 0), (d, 4 * d, 1))  # qkv, proj, up, down; split by rows or by columns
    block: list[Tensor] = []
    for index, (rows, columns, split) in enumerate(matrices):
        if index in (0, 2):
            block += [Tensor((d,), full)] * 2  # the LayerNorm before it
        block += [Tensor((rows, columns), full, split), Tensor((rows,), full, 0 if split == 0 else None)]
        if not full:
            block += [Tensor((shape.lora_rank, columns)), Tensor((rows, shape.lora_rank))]
    ends = [Tensor((shape.vocabulary, d), full), Tensor((positions, d), full)]
    return [*ends, *block * shape.n_layer, Tensor((d,), full), Tensor((d,), full), Tensor((shape.vocabulary, d), full)]


def transformer_linear(d_model: int, n_layer: int, vocabulary: int) -> int:
    """N of a GPT: per block 3 d^2 (qkv) + d^2 (output) + 8 d^2 (MLP of 4 d), and the head."""
    return 12 * n_layer * d_model**2 + vocabulary * d_model
