"""The interface between the loop and a way to train on several processes; and the plain case
without communication."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpuconsole.agent.world import World
from gpuconsole.model.knobs.catalogue import Knobs

Parameters = list[nn.Parameter] | list[dict[str, Any]]
MakeOptimizer = Callable[[Parameters], torch.optim.Optimizer]
Context = contextlib.AbstractContextManager[Any]


class ParallelPlan:
    """One process, or several independent processes.

    `on_last_bucket` is called when the last gradients of a backward pass are ready to be sent.
    `replicas`: the number of different batches in a step. `exchanges`: whether processes exchange
    gradients or layers.
    """

    exchanges = False

    def __init__(self, world: World) -> None:
        self.world = world
        self.on_last_bucket: Callable[[], None] = _nothing
        self.replicas = world.size
        self.replica = world.rank

    def wrap(self, model: nn.Module, knobs: Knobs, device: torch.device) -> nn.Module:
        """`model`, prepared for training under this plan. Shards may replace its parameters."""
        return model

    def optimizer(self, model: nn.Module, make: MakeOptimizer) -> torch.optim.Optimizer:
        return make(trained(model))

    def local(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer that holds this process's states."""
        return optimizer

    def backward_pass(self, model: nn.Module, last: bool) -> Context:
        """The context of one forward and backward pass; only the `last` pass of a step exchanges
        gradients."""
        return contextlib.nullcontext()

    def silence(self, model: nn.Module) -> Context:
        """The context of passes that exchange nothing (probe P7). Their gradients are worthless and
        must be dropped."""
        return contextlib.nullcontext()


def _nothing() -> None:
    """The default of `on_last_bucket`."""


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without the wrappers of torch.compile and DDP."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a sharded tensor; any other tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor
