"""The learning rate over time: a linear warm-up, then constant, cosine or linear decay. It can change between two steps."""

from __future__ import annotations

import math

import torch
from torch.optim.lr_scheduler import LambdaLR

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.training.loop.optimizers import LEARNING_RATE

HORIZON = 1000
"""Optimizer steps from the end of the warm-up to the lowest rate. A run has no planned end here, so the decay has a fixed length."""
FLOOR = 0.1
"""The lowest rate as a share of the highest (Hoffmann et al. 2022, appendix B: decay by 10x)."""


class Schedule:
    """torch's LambdaLR, counted in optimizer steps. `rebuild` continues the count with another optimizer or other knobs."""

    def __init__(self, optimizer: torch.optim.Optimizer, knobs: Knobs) -> None:
        self.steps = 0
        self.rebuild(optimizer, knobs)

    def rebuild(self, optimizer: torch.optim.Optimizer, knobs: Knobs) -> None:
        for group in optimizer.param_groups:
            group["initial_lr"] = LEARNING_RATE
            if isinstance(group["lr"], torch.Tensor):  # torchao's optimizers
                group["lr"].fill_(LEARNING_RATE)
            else:
                group["lr"] = LEARNING_RATE
        shape, warmup = str(knobs["lr_scheduler"]), int(knobs["warmup_steps"])
        self._scheduler = LambdaLR(optimizer, lambda step: factor(shape, warmup, step), last_epoch=self.steps - 1)

    def step(self) -> None:
        self._scheduler.step()
        self.steps += 1


def factor(shape: str, warmup: int, step: int) -> float:
    """The rate of the optimizer step `step` (from 0) as a share of the highest."""
    if step < warmup:
        return (step + 1) / warmup
    if shape == "constant":
        return 1.0
    done = min(1.0, (step - warmup) / HORIZON)
    left = 0.5 * (1 + math.cos(math.pi * done)) if shape == "cosine" else 1 - done
    return FLOOR + (1 - FLOOR) * left
