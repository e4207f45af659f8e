"""Bytes by part in each process: parameters, gradients and optimizer states, with and without sharding.

Parameters and gradients are fp32: autocast computes in 16 bits but stores both in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuconsole.diagnosis.models.shape import Tensor

FP32 = 4
BLOCK = 256
"""Elements that share one scale in an 8-bit optimizer (torchao 0.18, bitsandbytes)."""
LEAST_8BIT = 4096
"""Smaller tensors keep their states in fp32 (torchao, bitsandbytes)."""
FSDP_PASSES_AHEAD = 2
"""Units that FSDP2 holds gathered at the same time under zero3: the unit in use and the next unit."""


@dataclass(frozen=True)
class States:
    """Bytes that one process keeps from step to step. Gradients count at their maximum, after the backward pass."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def states(
    tensors: Iterable[Tensor], optim: str, sharding: str = "none", world: int = 1, rank: int = 0, tensor_parallel: int = 1
) -> States:
    """States of process `rank` of `world` data-parallel processes, each with its part of every matrix (`tensor_parallel`).

    none, ddp: no sharding. zero1: optimizer states by whole parameters, assigned greedily. zero2, zero3: FSDP2 shards parameters,
    gradients and states between steps. zero2 and zero3 differ in how long FSDP2 keeps parameters gathered (`gathered_bytes`).
    """
    local = [split_over(tensor, tensor_parallel) for tensor in tensors]
    if sharding in ("zero2", "zero3"):
        local = [shard(tensor, world, rank) for tensor in local]
    trained = [tensor for tensor in local if tensor.trained]
    owned = greedy_share(trained, world, rank) if sharding == "zero1" else trained
    return States(
        parameters=FP32 * sum(tensor.elements for tensor in local),
        gradients=FP32 * sum(tensor.elements for tensor in trained),
        optimizer=sum(optimizer_bytes(tensor.elements, optim) for tensor in owned),
    )


def states_by_count(parameters: float, trained: float, optim: str, sharding: str = "none", world: int = 1) -> States:
    """States from the number of parameters alone, sharded evenly."""
    part = 1 / world if sharding in ("zero2", "zero3") else 1.0
    owned = trained / world if sharding in ("zero1", "zero2", "zero3") else trained
    return States(FP32 * parameters * part, FP32 * trained * part, optimizer_bytes(int(owned), optim))


def optimizer_bytes(elements: int, optim: str) -> float:
    """Optimizer state bytes of one tensor. AdamW: two moments and a step count. sgd: the momentum buffer. sgd_plain: nothing.

    adamw_8bit: one byte per moment, one scale per block and a table of 256 values, if the tensor is large enough and divides into
    blocks; otherwise the same as AdamW.
    """
    if elements == 0 or optim == "sgd_plain":
        return 0.0
    if optim == "sgd":
        return FP32 * elements
    if optim == "adamw_8bit" and elements >= LEAST_8BIT and elements % BLOCK == 0:
        return FP32 + 2 * (elements + FP32 * elements / BLOCK + FP32 * 256)
    return FP32 + 2 * FP32 * elements


def split_over(tensor: Tensor, processes: int) -> Tensor:
    """A process's part of a tensor under tensor parallelism."""
    if tensor.split is None or processes == 1:
        return tensor
    shape = tuple(size // processes if axis == tensor.split else size for axis, size in enumerate(tensor.shape))
    return replace(tensor, shape=shape)


def shard(tensor: Tensor, world: int, rank: int) -> Tensor:
    """FSDP2's shard: rows in chunks of ceil(rows / world). The last processes get the remaining rows, possibly none."""
    rows = tensor.shape[0]
    chunk = math.ceil(rows / world)
    return replace(tensor, shape=(max(0, min(chunk, rows - rank * chunk)), *tensor.shape[1:]))


def greedy_share(tensors: Sequence[Tensor], world: int, rank: int) -> list[Tensor]:
    """ZeroRedundancyOptimizer's partition: whole parameters, the largest first, each to the process with the fewest elements."""
    shares: list[list[Tensor]] = [[] for _ in range(world)]
    sizes = [0] * world
    for tensor in sorted(tensors, key=lambda tensor: tensor.elements, reverse=True):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(tensor)
        sizes[smallest] += tensor.elements
    return shares[rank]


def gathered_bytes(units: Sequence[float], sharding: str) -> float:
    """Maximum bytes of gathered parameters that FSDP2 holds in addition to the shards. `units`: bytes of each block and of the rest.

    zero2 keeps all units from the forward pass to the backward pass. zero3 keeps the unit in use and the next unit.
    """
    if sharding == "zero2":
        return float(sum(units))
    return float(sum(sorted(units)[-FSDP_PASSES_AHEAD:])) if sharding == "zero3" else 0.0


def fragmentation_bytes(reserved: float, allocated: float) -> float:
    """Bytes that the caching allocator has reserved and that no tensor uses."""
    return reserved - allocated
