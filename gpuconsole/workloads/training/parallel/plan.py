"""What the loop needs of a way to train on several processes, and the plain case of one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from gpuconsole.agent.world import World
from gpuconsole.model.knobs.catalogue import Knobs

Parameters = list[nn.Parameter] | list[dict[str, Any]]
MakeOptimizer = Callable[[Parameters], torch.optim.Optimizer]
Context = contextlib.AbstractContextManager[Any]


class Plan:
    """One process on its own, or several that do not know of each other.

    `on_bucket` is called when gradients are ready to be sent, the last time when the backward pass itself is over.
    `replicas`: how many different batches a step trains on. `exchanges`: whether processes exchange gradients or layers.
    """

    exchanges = False

    def __init__(self, world: World) -> None:
        self.world = world
        self.on_bucket: Callable[[], None] = _nothing
        self.replicas = world.size
        self.replica = world.rank

    def wrap(self, model: nn.Module, knobs: Knobs, device: torch.device) -> nn.Module:
        """`model` as it trains here. Its parameters may have been exchanged for shards."""
        return model

    def optimizer(self, model: nn.Module, make: MakeOptimizer) -> torch.optim.Optimizer:
        return make(trained(model))

    def local(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer that holds this process's states."""
        return optimizer

    def backward_pass(self, model: nn.Module, last: bool) -> Context:
        """Around one forward and backward pass; only the `last` one of a step exchanges gradients."""
        return contextlib.nullcontext()

    def silence(self, model: nn.Module) -> Context:
        """Around passes that exchange nothing (probe P7). Their gradients are worth nothing and must be thrown away."""
        return contextlib.nullcontext()


def _nothing() -> None:
    """Nobody wants to know."""


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without torch.compile's and DDP's wrapping."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def local_bytes(tensors: Iterable[torch.Tensor]) -> float:
    """Bytes of the tensors' parts that this process holds."""
    return float(sum(part.numel() * part.element_size() for part in map(local_part, tensors)))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """A sharded tensor's own part; any other tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor
