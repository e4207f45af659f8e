"""Train with DistributedDataParallel or ZeRO-1. Every process holds all weights, and the processes
all-reduce the gradients in buckets.

The exposed communication is measured on every step. A comm hook is called when a bucket is ready,
so the call for the last bucket marks the end of the backward computation. The time from there until
backward() returns is waiting for the other processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from gpuconsole.agent.world import World
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.training.parallel.plan import (
    Context,
    MakeOptimizer,
    ParallelPlan,
    trained,
)

Hook = Callable[[Any, Any], torch.futures.Future[torch.Tensor]]


class Replicated(ParallelPlan):
    """`zero1`: the optimizer states are distributed over the processes, by whole parameters."""

    exchanges = True

    def __init__(self, world: World, zero1: bool) -> None:
        super().__init__(world)
        self._zero1 = zero1

    def wrap(self, model: nn.Module, knobs: Knobs, device: torch.device) -> nn.Module:
        ids = [device.index] if device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            model,
            device_ids=ids,
            bucket_cap_mb=float(knobs["bucket_cap_mb"]),
            gradient_as_bucket_view=True,
        )
        state, hook = comm_hook(str(knobs["comm_hook"]))

        def timed(state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with types, and ours are strings
            if bucket.is_last():
                self.on_last_bucket()
            sent = hook(state, bucket)
            if state is not None and device.type == "cpu":
                # PowerSGD issues further all-reduces when one is done. gloo runs those of several
                # buckets in any order, which differs between processes, and they get mixed up. So
                # the buckets follow one after the other, without overlap.
                sent.wait()
            return sent

        wrapped.register_comm_hook(state, timed)
        return wrapped

    def optimizer(self, model: nn.Module, make: MakeOptimizer) -> torch.optim.Optimizer:
        if not self._zero1:
            return make(trained(model))
        # its class and settings
        like = make([nn.Parameter(torch.zeros(1, device=next(model.parameters()).device))])
        passed_on = ("lr", "momentum", "foreach", "fused", "weight_decay", "betas", "eps")
        settings = {name: value for name, value in like.defaults.items() if name in passed_on}
        return ZeroRedundancyOptimizer(trained(model), optimizer_class=type(like), **settings)

    def local(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer

    def backward_pass(self, model: nn.Module, last: bool) -> Context:
        return (
            contextlib.nullcontext()
            if last or not isinstance(model, DistributedDataParallel)
            else model.no_sync()
        )

    def silence(self, model: nn.Module) -> Context:
        return self.backward_pass(model, last=False)


def comm_hook(name: str) -> tuple[Any, Hook]:
    """torch's hook of that name, and its state."""
    if name == "powersgd":
        return powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=10
        ), powerSGD_hook.powerSGD_hook
    hooks: dict[str, Hook] = {
        "none": default_hooks.allreduce_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "fp16": default_hooks.fp16_compress_hook,
    }
    return None, hooks[name]
