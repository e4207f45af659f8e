"""A fault for exercises: the last of several processes is slower in each pass, like a process with a hot GPU or a busy core."""

from __future__ import annotations

import time
from typing import Any

import torch

from gpuconsole.agent.world import World
from gpuconsole.model.knobs.catalogue import Knobs


def lost_s(phase: str, knobs: Knobs, world: World) -> float:
    """The extra seconds of this process in `phase` of a pass."""
    slow = world.size > 1 and world.rank == world.size - 1 and knobs.get("straggler_phase") == phase
    return float(knobs.get("straggler_ms", 0.0)) / 1000 if slow else 0.0


def lose(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)


def losing_backward(loss: torch.Tensor, seconds: float) -> torch.Tensor:
    """`loss` with a backward pass that takes `seconds` longer."""
    return _Slow.apply(loss, seconds) if seconds else loss


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None
