"""A long chain of elementwise operations: scales, activations, residuals, clamps and norms, as
models have them between matrix products.

The chain learns the scales of another chain. Only the size of the inputs matters, so they are
generated; they are on the device from the start, because in a model the layer before would produce
them there.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device import Kind
from gpuconsole.workloads.training.task import Batch

LINKS = ("scale", "silu", "residual", "clamp", "norm")
BATCHES = 2
"""Number of batches; they are made at the start and used in turn."""
MIN_PASSES = 4
"""How often a value of the batch must cross memory at least: forward reads input and target,
backward reads both again. All other values could stay in registers."""


class Chain(nn.Module):
    """`length` links in sequence, each with its own trained scale."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.ones(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, columns) to the same shape."""
        first = x
        for index, scale in enumerate(self.scales):
            x = link(LINKS[index % len(LINKS)], x, first, scale)
        return x


def link(kind: str, x: torch.Tensor, first: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    match kind:
        case "scale":
            return x * scale
        case "silu":
            return F.silu(x)
        case "residual":
            return x + first
        case "clamp":
            return x.clamp(-3, 3)
        case _:
            return F.rms_norm(x, x.shape[-1:])


class ResidentStream:
    """A few batches in turn, already on the device."""

    def __init__(self, batches: list[Batch]) -> None:
        self._turn = itertools.cycle(batches)

    def next(self) -> Batch:
        return next(self._turn)

    def close(self) -> None:
        """Nothing to close."""


class ChainTask:
    dense_kind: Kind = "matrix product"

    def __init__(self, knobs: Knobs, device: torch.device, seed: int) -> None:
        self._device = device
        self._columns = int(knobs["d_model"])
        self._random = torch.Generator(device).manual_seed(seed)
        self.model: nn.Module = Chain(int(knobs["chain_length"])).to(device)
        self._taught = Chain(int(knobs["chain_length"])).to(device)
        nn.init.uniform_(self._taught.scales, 0.5, 1.5)

    def check(self, knobs: Knobs) -> None:
        """Every combination runs."""

    def open_stream(self, knobs: Knobs) -> ResidentStream:
        return ResidentStream([self._make(int(knobs["batch_size"])) for _ in range(BATCHES)])

    def eval_batch(self, knobs: Knobs) -> Batch:
        return self._make(int(knobs["batch_size"]))

    def loss(self, batch: Batch) -> torch.Tensor:
        inputs, targets = batch
        return F.mse_loss(self.model(inputs), targets)

    def sizes(self, batch: Batch) -> tuple[int, int]:
        return len(batch[0]), 0

    def flops_per_sample(self, knobs: Knobs) -> float:
        """0: there are no matrix products, and only those count as model FLOPs."""
        return 0.0

    def facts(self, knobs: Knobs) -> dict[str, float]:
        return {"bytes_per_sample": MIN_PASSES * 4.0 * self._columns}

    @torch.no_grad()
    def _make(self, rows: int) -> Batch:
        inputs = torch.randn(rows, self._columns, device=self._device, generator=self._random)
        return inputs, self._taught(inputs)


def create(knobs: Knobs, device: torch.device, seed: int) -> ChainTask:
    return ChainTask(knobs, device, seed)
