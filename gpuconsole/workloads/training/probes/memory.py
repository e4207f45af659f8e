"""Probes of memory: its parts, and how much of it is lost to fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gpuconsole.agent.free_memory import free_and_total
from gpuconsole.agent.loop import Signals
from gpuconsole.agent.probes import ProbeError, rounds, untouched
from gpuconsole.agent.protocol import Signal
from gpuconsole.model.knobs.training import GRAPH_MODES
from gpuconsole.workloads.device_memory import (
    MB,
    allocator_name,
    allocator_stats,
    limit_bytes,
    watched_heap_peaks,
)
from gpuconsole.workloads.training.loop import TrainingLoop

BUDGET_S = 1.5
MIN_ROUNDS = 3
MAX_ROUNDS = 12
"""Passes: batches differ in length, and memory is fullest in the longest."""


def heap_peaks(loop: TrainingLoop) -> Signals:
    """Reserved and used memory when the job's memory is fullest, from passes on fresh batches. The
    difference is lost to fragments."""
    if loop.device.type != "cpu":
        raise ProbeError("CUDA's allocator reports its peaks without a probe")
    stream = loop.task.open_stream(loop.knobs)
    try:
        with untouched(loop), watched_heap_peaks() as peaks:
            for _ in rounds(loop, BUDGET_S, MIN_ROUNDS, MAX_ROUNDS):
                loop.forward(stream.next()).backward()
                loop.drop_gradients()
    finally:
        stream.close()
    if not peaks:
        raise ProbeError(
            "the C library does not report what its heap holds (glibc 2.33 or newer does)"
        )
    return {
        f"memory.{name}": Signal(
            value, "B", f"{allocator_name(loop.device)}, the most in a few passes"
        )
        for name, value in peaks.items()
    }


def memory_parts(loop: TrainingLoop) -> Signals:
    """The parts of this process's device memory, and its limit. Activations: what one forward pass
    saves for its backward pass."""
    batch = loop.batch
    model, device = loop.task.model, loop.device
    # of the job itself: the figures before this probe allocates, and the peaks without earlier
    # probes
    figures = {
        f"memory.{name}": value
        for name, value in (allocator_stats(device) | loop.peaks.figures()).items()
    }
    others = _others_bytes(device, figures)
    with untouched(loop):
        loss, activations = saved_bytes(lambda: loop.forward(batch), [*batch, *model.parameters()])
        loss.backward()
        gradients = held_bytes(parameter.grad for parameter in model.parameters())
    parts = {
        "parameters": (held_bytes(model.parameters()), "this process's part"),
        "gradients": (gradients, "after a backward pass, this process's part"),
        "optimizer": (
            state_bytes(loop.plan.local(loop.optimizer)),
            "optimizer state, this process's part",
        ),
        "activations": (
            activations,
            (
                "saved_tensors_hooks on one forward pass, each storage once, without parameters and"
                " batch"
            ),
        ),
        "limit": limit_figure(loop),
        **others,
    }
    signals = {
        f"memory.{name}_bytes": Signal(value, "B", source)
        for name, (value, source) in parts.items()
    }
    if str(loop.knobs.get("torch_compile", "off")) in GRAPH_MODES:
        signals["memory.graph_pools"] = Signal(1.0, "", "torch.compile captures CUDA graphs")
    for name, value in figures.items():
        signals[name] = Signal(
            value, "B" if name.endswith("_bytes") else "", allocator_name(device)
        )
    return signals


def _others_bytes(device: torch.device, figures: dict[str, float]) -> dict[str, tuple[float, str]]:
    """What is used of a GPU and not reserved by the allocator of this process, with its source;
    empty on other devices."""
    if device.type != "cuda":
        return {}
    free, total = free_and_total(device)
    return {
        "others": (
            max(0.0, total - free - figures["memory.reserved_bytes"]),
            "the CUDA context, libraries, other processes",
        )
    }


def limit_figure(loop: TrainingLoop) -> tuple[float, str]:
    """The memory limit of the run in bytes, and where it comes from."""
    limit, wanted = limit_bytes(loop.device, loop.knobs), int(loop.knobs["memory_limit_mb"]) * MB
    return limit, "memory_limit_mb" if wanted and limit == wanted else "the device's memory"


def held_bytes(tensors: Iterable[object]) -> float:
    """Bytes that this process holds: of a sharded tensor its own part, of a sparse tensor its
    values and indices."""
    return float(sum(_bytes(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)))


def _bytes(tensor: torch.Tensor) -> float:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    # a tensor that consists of others: DTensor's local part, an 8-bit state's codes and scales
    if flatten is not None:
        return held_bytes(getattr(tensor, name) for name in flatten()[0])
    if tensor.is_sparse:
        return held_bytes([tensor._values(), tensor._indices()])
    return tensor.numel() * tensor.element_size()


def state_bytes(optimizer: torch.optim.Optimizer) -> float:
    """Bytes of the optimizer's states, step counters included."""
    return held_bytes(value for values in optimizer.state.values() for value in values.values())


def saved_bytes(
    forward: Callable[[], torch.Tensor], besides: Iterable[torch.Tensor]
) -> tuple[torch.Tensor, float]:
    """The result of `forward`, and the bytes that it saved for the backward pass, each storage
    once.

    Parameters and `besides` (the batch) do not count, because they exist anyway. Copies of weights
    that autocast made do count.
    """
    besides_storages = {
        part.untyped_storage().data_ptr() for tensor in besides for part in _plain(tensor)
    }
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        for part in _plain(tensor):
            storage = part.untyped_storage()
            if storage.data_ptr() not in besides_storages and not isinstance(
                _root(part), torch.nn.Parameter
            ):
                saved[storage.data_ptr()] = storage.nbytes()
        # the tensor itself may belong to the node that saves it: a cycle, which would keep a pass
        # that broke off
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
    return result, float(sum(saved.values()))


def _root(tensor: torch.Tensor) -> Any:
    """The tensor of which `tensor` is a view; `tensor` itself where it is no view."""
    return tensor if tensor._base is None else tensor._base


def _plain(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with a storage of which `tensor` consists."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [] if tensor.is_sparse else [tensor]
    parts = [getattr(tensor, name) for name in flatten()[0]]  # among them the mesh of a DTensor
    return [plain for part in parts if isinstance(part, torch.Tensor) for plain in _plain(part)]
