"""Gradients without a model: DDP exchanges `buffer_mb` of them a step, and there is no computation that could hide it.

All values are zero: what travels does not matter, only how much and in which pieces. One sample is one exchange.
"""

from __future__ import annotations

import torch
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.calibration.dense import Kind
from gpuconsole.workloads.training.task import Batch

PIECE_BYTES = 16 * 1024
"""The size of one parameter: the smallest bucket there can be."""
MB = 2**20


class Gradients(nn.Module):
    """Parameters of 16 KiB each, every one of which has a gradient."""

    def __init__(self, total_bytes: float) -> None:
        super().__init__()
        pieces = max(1, round(total_bytes / PIECE_BYTES))
        self.pieces = nn.ParameterList(nn.Parameter(torch.zeros(PIECE_BYTES // 4)) for _ in range(pieces))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """(1,) to a scalar."""
        return sum((piece.sum() for piece in self.pieces), torch.zeros((), device=weight.device)) * weight.mean()


class ExchangeTask:
    dense_kind: Kind = "matrix product"

    def __init__(self, knobs: Knobs, device: torch.device) -> None:
        self.model: nn.Module = Gradients(float(knobs["buffer_mb"]) * MB).to(device)

    def check(self, knobs: Knobs) -> None:
        """Every combination runs."""

    def open_stream(self, knobs: Knobs) -> Zeros:
        return Zeros()

    def eval_batch(self, knobs: Knobs) -> Batch:
        return Zeros().next()

    def loss(self, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = self.model(batch[0])
        return loss

    def sizes(self, batch: Batch) -> tuple[int, int]:
        return 1, 0

    def flops_per_sample(self, knobs: Knobs) -> float:
        """None that counts: sums of parameters are no model."""
        return 0.0


class Zeros:
    """The same number for ever."""

    def next(self) -> Batch:
        return (torch.zeros(1),)

    def close(self) -> None:
        """Nothing to give back."""


def create(knobs: Knobs, device: torch.device, seed: int) -> ExchangeTask:
    return ExchangeTask(knobs, device)
