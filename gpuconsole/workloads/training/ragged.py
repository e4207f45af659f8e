"""A small classifier of verses. A batch is as long as its longest verse, so few batches have the same shape."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.arithmetic import Kind
from gpuconsole.workloads.training.task import Batch, count_training_flops
from gpuconsole.workloads.training.verses import PADDING, Verses, VerseStream


class BagOfBytes(nn.Module):
    """The mean of the byte embeddings of a verse, and a linear layer that predicts whether the verse names the LORD.

    Few kernels: compiles in seconds.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, d_model)
        self.head = nn.Linear(d_model, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) int64 to logits (batch, 2)."""
        there = (tokens != PADDING).unsqueeze(-1)
        x = F.silu(self.bytes(tokens))
        return self.head((x * there).sum(1) / there.sum(1))


class RaggedTask:
    dense_kind: Kind = "matrix product"

    def __init__(self, knobs: Knobs, device: torch.device, seed: int) -> None:
        self._verses = Verses()
        self._seed = seed
        self.model: nn.Module = BagOfBytes(int(knobs["d_model"])).to(device)
        with torch.device("meta"):
            self._twin = BagOfBytes(int(knobs["d_model"]))  # for counting FLOPs: the model itself may be compiled

    def check(self, knobs: Knobs) -> None:
        """Every combination runs."""

    def open_stream(self, knobs: Knobs) -> VerseStream:
        return VerseStream(self._verses, knobs, self._seed)

    def eval_batch(self, knobs: Knobs) -> Batch:
        return VerseStream(self._verses, knobs, self._seed + 1).next()

    def loss(self, batch: Batch) -> torch.Tensor:
        tokens, named = batch
        return F.cross_entropy(self.model(tokens).float(), named)

    def sizes(self, batch: Batch) -> tuple[int, int]:
        return len(batch[0]), 0

    def flops_per_sample(self, knobs: Knobs) -> float:
        tokens = torch.zeros(1, int(knobs["seq_len"]), dtype=torch.int64, device="meta")
        return count_training_flops(self._twin, lambda twin: twin(tokens).sum())


def create(knobs: Knobs, device: torch.device, seed: int) -> RaggedTask:
    return RaggedTask(knobs, device, seed)
