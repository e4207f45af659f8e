"""Verses of the King James Bible: sequences of natural length, labelled by whether they name the LORD."""

from __future__ import annotations

from importlib.resources import files

import torch

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.training.gpt import padded
from gpuconsole.workloads.training.task import Batch

NAME = b"LORD"
PADDING = 0
"""No byte of a text is 0."""


class Verses:
    """All verses in one tensor of bytes, with start, length and label of each (1: names the LORD).

    The reference before a verse is not included.
    """

    def __init__(self) -> None:
        lines = (files("gpuconsole") / "data/text/kjv.txt").read_text(encoding="utf-8").splitlines()[:-1]  # the last line is incomplete
        texts = [line.partition(" ")[2].encode() for line in lines]
        self.named = torch.tensor([int(NAME in text) for text in texts])
        self.lengths = torch.tensor([len(text) for text in texts])
        self.starts = torch.cumsum(self.lengths, 0) - self.lengths
        self.text = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)

    def batch(self, which: torch.Tensor, knobs: Knobs) -> Batch:
        """The verses numbered `which` as (rows, tokens) int64, cut at `seq_len` and padded to the longest or to a multiple; and their
        labels."""
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
        which = torch.randint(len(self._verses.lengths), (int(self._knobs["batch_size"]),), generator=self._random)
        return self._verses.batch(which, self._knobs)

    def close(self) -> None:
        """Nothing to close."""
