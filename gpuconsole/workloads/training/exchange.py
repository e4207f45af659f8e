"""Gradients without a model: DDP exchanges `buffer_mb` of gradients a step, and no computation can
hide the exchange.

All values are zero, because only the amount and the size of the pieces matter. One sample is one
exchange.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device import Kind
from gpuconsole.workloads.training.task import Batch

PIECE_BYTES = {"cpu": 16 * 1024, "cuda": 256 * 1024}
"""The size of one parameter, which is the smallest possible bucket. On a GPU the host needs about
10 us for each parameter, and with smaller parameters this time would hide the exchange."""
MB = 2**20


class ZeroLoss(torch.autograd.Function):
    """A loss of 0 whose gradient is 0 for every parameter. One operation, so that a pass consists
    of the exchange alone."""

    @staticmethod
    def forward(ctx: Any, *pieces: torch.Tensor) -> torch.Tensor:
        ctx.count = len(pieces)
        ctx.zeros = torch.zeros_like(pieces[0])
        return pieces[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (ctx.zeros,) * ctx.count


class Gradients(nn.Module):
    """Parameters of `piece_bytes` each. All have a gradient."""

    def __init__(self, total_bytes: float, piece_bytes: int) -> None:
        super().__init__()
        pieces = max(1, round(total_bytes / piece_bytes))
        self.pieces = nn.ParameterList(
            nn.Parameter(torch.zeros(piece_bytes // 4)) for _ in range(pieces)
        )

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """(1,) to a scalar. The value of `weight` does not matter."""
        loss: torch.Tensor = ZeroLoss.apply(*self.pieces)
        return loss


class ExchangeTask:
    dense_kind: Kind = "matrix product"

    def __init__(self, knobs: Knobs, device: torch.device) -> None:
        self.model: nn.Module = Gradients(
            float(knobs["buffer_mb"]) * MB, PIECE_BYTES.get(device.type, PIECE_BYTES["cpu"])
        ).to(device)

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
        """0: sums of parameters do not count as model FLOPs."""
        return 0.0


class Zeros:
    """An endless stream of the number 0."""

    def next(self) -> Batch:
        return (torch.zeros(1),)

    def close(self) -> None:
        """Nothing to close."""


def create(knobs: Knobs, device: torch.device, seed: int) -> ExchangeTask:
    return ExchangeTask(knobs, device)
