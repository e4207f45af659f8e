"""What a training workload provides, and what workloads share. The loop does the rest.

A workload is a module of this folder with `create(knobs, device, seed) -> Task`, and a TOML file of
the same name that lists its knobs: so the console can check knobs without importing torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

import torch
from torch.utils.flop_counter import FlopCounterMode

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device import Kind

Batch = tuple[torch.Tensor, ...]


class Stream(Protocol):
    """An endless supply of batches on the host."""

    def next(self) -> Batch: ...

    def close(self) -> None: ...


class Task(Protocol):
    """The parts of a training job that differ between workloads.

    Optional methods: `facts(knobs)`, further facts for the models;
    `make_optimizer(parameters, optim)`, for parameters that need another optimizer; `preserved()`,
    a context manager whose passes leave the task's own state as it was, for a task that keeps state
    between passes.
    """

    model: torch.nn.Module
    dense_kind: Kind
    """The dense arithmetic that the workload mostly consists of: its speed is compared with the
    device's speed at this kind."""

    def check(self, knobs: Knobs) -> None:
        """Raise ValueError, one line, where this model cannot run under `knobs`."""
        ...

    def open_stream(self, knobs: Knobs) -> Stream:
        """Training batches under `knobs`."""
        ...

    def eval_batch(self, knobs: Knobs) -> Batch:
        """One batch of held-out data, on the host."""
        ...

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean loss of a batch that is on the device; a scalar tensor."""
        ...

    def sizes(self, batch: Batch) -> tuple[int, int]:
        """Samples and tokens in a batch (0 tokens where samples have no tokens)."""
        ...

    def flops_per_sample(self, knobs: Knobs) -> float:
        """Model FLOPs of forward plus backward for one sample, recomputation not counted."""
        ...


def count_training_flops(
    model: torch.nn.Module, loss: Callable[[torch.nn.Module], torch.Tensor]
) -> float:
    """FLOPs of `loss(model).backward()`, a multiply-add counting as two, counted by torch on the
    meta device: without data and in no time.

    On CPU tensors torch's counter misses scaled dot product attention, because its CPU kernel is
    not in the registry. On the meta device SDPA decomposes, and the count equals 6 N + 12 L d T a
    token (PaLM, appendix B) exactly.
    """
    twin = copy.deepcopy(model).to("meta")
    counter = FlopCounterMode(display=False)
    with counter:
        loss(twin).backward()
    return float(counter.get_total_flops())
