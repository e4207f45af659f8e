"""A classifier of verses with a replay buffer of features: tensors of all sizes, some of which
outlive many steps.

Continual learning replays kept features in this way. For an allocator this is the hard case: kept
blocks lie between freed blocks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device import Kind
from gpuconsole.workloads.training.ragged import PADDING, Verses, VerseStream
from gpuconsole.workloads.training.task import Batch, count_training_flops

KEPT = 32
"""Batches of features in the replay buffer. A new batch replaces a random one."""
NARROWER = 4
"""The features have that many times fewer columns than the model."""


class VerseNet(nn.Module):
    """MLP blocks on each byte, then narrow features. The maxima of the features predict whether the
    verse names the LORD."""

    def __init__(self, d_model: int, n_layer: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, d_model)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.RMSNorm(d_model),
                nn.Linear(d_model, 4 * d_model),
                nn.SiLU(),
                nn.Linear(4 * d_model, d_model),
            )
            for _ in range(n_layer)
        )
        self.narrow = nn.Linear(d_model, d_model // NARROWER)
        self.head = nn.Linear(d_model // NARROWER, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) int64 to features (batch, tokens, d_model / 4), 0 where there is
        padding."""
        x = self.bytes(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.narrow(x) * (tokens != PADDING).unsqueeze(-1)


class ChurnTask:
    dense_kind: Kind = "matrix product"

    def __init__(self, knobs: Knobs, device: torch.device, seed: int) -> None:
        self._verses = Verses()
        self._seed = seed
        self._chance = random.Random(seed)
        self._batch_size = int(knobs["batch_size"])
        self._kept: list[Batch] = []
        self._preserving = False
        shape = int(knobs["d_model"]), int(knobs["n_layer"])
        self.model: nn.Module = VerseNet(*shape).to(device)
        self._head = self.model.head
        with torch.device("meta"):
            self._twin = VerseNet(*shape)  # for counting FLOPs: the model itself may be compiled

    def check(self, knobs: Knobs) -> None:
        """Every combination runs."""

    def open_stream(self, knobs: Knobs) -> VerseStream:
        self._batch_size = int(knobs["batch_size"])
        return VerseStream(self._verses, knobs, self._seed)

    def eval_batch(self, knobs: Knobs) -> Batch:
        return VerseStream(self._verses, knobs, self._seed + 1).next()

    def loss(self, batch: Batch) -> torch.Tensor:
        tokens, named = batch
        features = self.model(tokens)
        loss = self._loss_of(features, named)
        if not torch.is_grad_enabled() or len(tokens) != self._batch_size:
            # an evaluation, or a probe with another batch size: the replay buffer stays as it is
            return loss
        if self._kept:
            loss = loss + self._loss_of(*self._chance.choice(self._kept))
        new = features.detach().to(torch.float32, copy=True), named
        if self._preserving:
            return loss
        if len(self._kept) == KEPT:
            self._kept.pop(self._chance.randrange(KEPT))
        self._kept.append(new)
        return loss

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Passes in this block do the same work, and change neither the replay buffer nor the
        random generator."""
        state, self._preserving = self._chance.getstate(), True
        try:
            yield
        finally:
            self._chance.setstate(state)
            self._preserving = False

    def sizes(self, batch: Batch) -> tuple[int, int]:
        return len(batch[0]), 0

    def flops_per_sample(self, knobs: Knobs) -> float:
        """FLOPs of a verse of mean length, without the few of the head."""
        mean = int(self._verses.lengths.clamp(max=int(knobs["seq_len"])).float().mean())
        tokens = torch.zeros(1, mean, dtype=torch.int64, device="meta")
        return count_training_flops(self._twin, lambda twin: twin(tokens).sum())

    def _loss_of(self, features: torch.Tensor, named: torch.Tensor) -> torch.Tensor:
        assert isinstance(self._head, nn.Linear)
        return F.cross_entropy(self._head(features.amax(1)).float(), named)


def create(knobs: Knobs, device: torch.device, seed: int) -> ChurnTask:
    return ChurnTask(knobs, device, seed)
