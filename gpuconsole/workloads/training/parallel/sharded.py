"""FSDP2 for ZeRO-2 and ZeRO-3, and tensor parallelism by DTensor. Both come from torch and can be
combined."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from gpuconsole.agent.world import World
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.training.parallel.plan import (
    Context,
    MakeOptimizer,
    ParallelPlan,
    trained,
)

TENSOR_PLAN: dict[str, Callable[[], ParallelStyle]] = {
    "qkv": ColwiseParallel,
    "up": ColwiseParallel,
    "proj": RowwiseParallel,
    "down": RowwiseParallel,
}
"""Megatron's split of a block: the first matrix of each pair by columns, the second by rows, one
all-reduce after it."""
RENAMED = hasattr(dist, "all_gather_single")
"""torch 2.13 renamed the two collectives of FSDP2."""


class Sharded(ParallelPlan):
    """Parameters, gradients and optimizer states in shards over the replicas; matrices split over
    `tensor_parallel` processes.

    `sharding`: `zero3` gathers a block's parameters for its forward and again for its backward
    pass; `zero2` keeps them between the two (with FSDP2 the parameters are in shards between steps
    in both); `none` only splits matrices.
    """

    exchanges = True

    def __init__(self, world: World, sharding: str, tensor_parallel: int) -> None:
        super().__init__(world)
        self._sharding = sharding
        self._tensor_parallel = tensor_parallel
        self.replicas = world.size // tensor_parallel
        self.replica = world.rank // tensor_parallel

    def wrap(self, model: nn.Module, knobs: Knobs, device: torch.device) -> nn.Module:
        mesh = init_device_mesh(
            device.type,
            (self.replicas, self._tensor_parallel),
            mesh_dim_names=("replicas", "matrices"),
        )
        blocks = [
            block
            for children in model.modules()
            if isinstance(children, nn.ModuleList)
            for block in children
        ]
        if self._tensor_parallel > 1:
            for block in blocks:
                self._split(block, mesh["matrices"])
        if self._sharding in ("zero2", "zero3"):
            for unit in (*blocks, model):
                fully_shard(
                    unit, mesh=mesh["replicas"], reshard_after_forward=self._sharding == "zero3"
                )
        return model

    def _split(self, block: nn.Module, mesh: DeviceMesh) -> None:
        heads = getattr(block, "heads", self._tensor_parallel)
        if heads % self._tensor_parallel:
            raise ValueError(
                f"tensor_parallel {self._tensor_parallel} does not divide the {heads} attention"
                " heads"
            )
        parallelize_module(
            block,
            mesh,
            {name: style() for name, style in TENSOR_PLAN.items() if hasattr(block, name)},
        )

    def optimizer(self, model: nn.Module, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Shards and whole tensors in separate groups: fused kernels accept no mixture."""
        shards = [parameter for parameter in trained(model) if isinstance(parameter, DTensor)]
        whole = [parameter for parameter in trained(model) if not isinstance(parameter, DTensor)]
        return make([{"params": group} for group in (shards, whole) if group])

    def backward_pass(self, model: nn.Module, last: bool) -> Context:
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    def silence(self, model: nn.Module) -> Context:
        return silent_collectives()


@contextlib.contextmanager
def silent_collectives() -> Iterator[None]:
    """Replace collectives by copies of this process's own data: the same work, no communication,
    worthless results."""

    def all_gather(
        output_tensor: torch.Tensor, input_tensor: torch.Tensor, *_: Any, **__: Any
    ) -> _Done:
        own = input_tensor.reshape(-1)
        for part in output_tensor.view(-1, own.numel()):
            if part.data_ptr() != own.data_ptr():  # FSDP2 gathers in place
                part.copy_(own)
        return _Done()

    def reduce_scatter(output: torch.Tensor, input: torch.Tensor, *_: Any, **__: Any) -> _Done:
        output.copy_(input.reshape(-1)[: output.numel()].view_as(output))
        return _Done()

    def in_place(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor

    placeholders: list[tuple[Any, str, Any]] = [
        (dist, "all_gather_single" if RENAMED else "all_gather_into_tensor", all_gather),
        (dist, "reduce_scatter_single" if RENAMED else "reduce_scatter_tensor", reduce_scatter),
        (functional, "all_reduce", in_place),
    ]
    real = [getattr(module, name) for module, name, _ in placeholders]
    try:
        for module, name, placeholder in placeholders:
            setattr(module, name, placeholder)
        yield
    finally:
        for (module, name, _), original in zip(placeholders, real, strict=True):
            setattr(module, name, original)


class _Done:
    """The handle of a collective that is already complete."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True
