"""One optimizer to the loop, two underneath: SparseAdam for embedding tables with sparse gradients, another for everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpuconsole.workloads.training.loop.optimizers import LEARNING_RATE, make_optimizer
from gpuconsole.workloads.training.parallel.plan import Parameters


class DenseAndSparse(torch.optim.Optimizer):
    """Steps both. Parameter groups and states are the parts' own, so a schedule or a checkpoint sees all of them."""

    def __init__(self, dense: torch.optim.Optimizer, sparse: torch.optim.Optimizer) -> None:
        super().__init__([*dense.param_groups, *sparse.param_groups], {})
        self._parts = (dense, sparse)
        for part in self._parts:
            part.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()


def sparse_maker(tables: list[nn.Parameter]) -> Callable[[Parameters, str], torch.optim.Optimizer]:
    """Makes the optimizer `optim` for a model whose `tables` have sparse gradients, which no other optimizer takes."""
    sparse = {id(table) for table in tables}

    def make(parameters: Parameters, optim: str) -> torch.optim.Optimizer:
        dense = [parameter for parameter in parameters if id(parameter) not in sparse]
        return DenseAndSparse(make_optimizer(dense, optim), torch.optim.SparseAdam(tables, lr=LEARNING_RATE))  # type: ignore[arg-type]

    return make
