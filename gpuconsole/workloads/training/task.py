"""What a training workload file provides; the loop does the rest.

A workload is a module with `create(knobs, device, seed) -> Task`, and a TOML file of the same name that lists its
knobs, so that the console can check them without importing torch.
"""

from __future__ import annotations

from typing import Protocol

import torch

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.calibration.dense import Kind

Batch = tuple[torch.Tensor, ...]


class Stream(Protocol):
    """An endless supply of batches on the host."""

    def next(self) -> Batch: ...

    def close(self) -> None: ...


class Task(Protocol):
    """The parts of a training job that differ between workloads."""

    model: torch.nn.Module
    dense_kind: Kind
    """The dense arithmetic that it mostly consists of: what its speed is held against."""

    def check(self, knobs: Knobs) -> None:
        """Raise ValueError, one line, where this model cannot run with `knobs`."""
        ...

    def open_stream(self, knobs: Knobs) -> Stream:
        """Training batches as `knobs` say."""
        ...

    def eval_batch(self, knobs: Knobs) -> Batch:
        """One batch of held-out data, on the host."""
        ...

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean loss of a batch that is on the device; a scalar tensor."""
        ...

    def sizes(self, batch: Batch) -> tuple[int, int]:
        """Samples and tokens in a batch (tokens 0 where the word means nothing)."""
        ...

    def flops_per_sample(self, knobs: Knobs) -> float:
        """Model FLOPs of forward plus backward for one sample, recomputation not counted."""
        ...
