"""A small classifier of verses. A batch is as long as its longest verse, so few batches have the
same shape."""

from __future__ import annotations

from importlib.resources import files

import torch
import torch.nn.functional as F
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device import Kind
from gpuconsole.workloads.training.gpt import padded
from gpuconsole.workloads.training.task import Batch, count_training_flops

# --- verses of the King James Bible: sequences of natural length, labelled by whether they name the
# LORD ---

NAME = b"LORD"
PADDING = 0
"""No byte of a text is 0."""


class Verses:
    """All verses in one tensor of bytes, with start, length and label of each (1: names the LORD).

    The reference before a verse is not included.
    """

    def __init__(self) -> None:
        # the last line is incomplete
        lines = (
            (files("gpuconsole") / "data/text/kjv.txt")
            .read_text(encoding="utf-8")
            .splitlines()[:-1]
        )
        texts = [line.partition(" ")[2].encode() for line in lines]
        self.named = torch.tensor([int(NAME in text) for text in texts])
        self.lengths = torch.tensor([len(text) for text in texts])
        self.starts = torch.cumsum(self.lengths, 0) - self.lengths
        self.text = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)

    def batch(self, which: torch.Tensor, knobs: Knobs) -> Batch:
        """The verses numbered `which` as (rows, tokens) int64, cut at `seq_len` and padded to the
        longest or to a multiple; and their labels."""
        lengths = self.lengths[which].clamp(max=int(knobs["seq_len"]))
        offsets = torch.arange(padded(int(lengths.max()), int(knobs["pad_to_multiple_of"])))
        inside = offsets < lengths[:, None]
        places = torch.where(inside, self.starts[which][:, None] + offsets, 0)
        return torch.where(inside, self.text[places].long(), PADDING), self.named[which]


class VerseStream:
    """Random verses, cut in the training process at almost no cost."""

    def __init__(self, verses: Verses, knobs: Knobs, seed: int) -> None:
        self._verses = verses
        self._knobs = dict(knobs)
        self._random = torch.Generator().manual_seed(seed)

    def next(self) -> Batch:
        which = torch.randint(
            len(self._verses.lengths), (int(self._knobs["batch_size"]),), generator=self._random
        )
        return self._verses.batch(which, self._knobs)

    def close(self) -> None:
        """Nothing to close."""


# --- the workload ---------------------------------------------------------------------------------


class BagOfBytes(nn.Module):
    """The mean of the byte embeddings of a verse, and a linear layer that predicts whether the
    verse names the LORD.

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
            # for counting FLOPs: the model itself may be compiled
            self._twin = BagOfBytes(int(knobs["d_model"]))

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
