"""Device memory: the limit that a run may use, its peak, and what its tensors take by part."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gpuconsole.agent.memory_stats import allocator_stats, fix_mmap_threshold, keep_freed_memory, settle_heap
from gpuconsole.model.knobs.catalogue import Knobs

MB = 2**20
RENAMED_IN = (2, 9)
"""The first torch that reads PYTORCH_ALLOC_CONF; those before read PYTORCH_CUDA_ALLOC_CONF."""


def limit_bytes(device: torch.device, knobs: Knobs) -> float:
    """What the run may use: its `memory_limit_mb`, else the device's memory (on a CPU the host's)."""
    if knobs.get("memory_limit_mb"):
        return float(int(knobs["memory_limit_mb"]) * MB)
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def enforce_limit(device: torch.device, knobs: Knobs) -> None:
    """Hold the CUDA allocator to `memory_limit_mb`; a CPU has nothing that could, so there it is a yardstick."""
    if device.type == "cuda" and knobs.get("memory_limit_mb"):
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes(device, knobs) / total), device)


def set_up_allocator(knobs: Knobs) -> None:
    """Put `pytorch_alloc_conf` where the CUDA allocator reads it: in the environment, before its first use in this process. glibc is told
    at once."""
    mmap_threshold_kb = int(knobs.get("malloc_mmap_threshold_kb", 0))
    if not mmap_threshold_kb:
        settle_heap()
    fix_mmap_threshold(mmap_threshold_kb)
    keep_freed_memory(int(knobs.get("malloc_trim_threshold_mb", 0)), mmap_threshold_kb)
    conf = str(knobs.get("pytorch_alloc_conf", "default"))
    if conf != "default":
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):  # torch reads either, the old name first where it is set
            os.environ.pop(name, None)
        newer = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= RENAMED_IN
        os.environ["PYTORCH_ALLOC_CONF" if newer else "PYTORCH_CUDA_ALLOC_CONF"] = conf


def peak_bytes(device: torch.device) -> float:
    """Peak device memory allocated by this process; on a CPU its peak resident set."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def forget_peak(device: torch.device) -> None:
    """Calibration's buffers are not the workload's (CUDA only: a process's peak resident set cannot be reset)."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def restart_peak(device: torch.device) -> None:
    """From here on `peak_bytes` tells the peak of what comes (CUDA only)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def held_bytes(tensors: Iterable[object]) -> float:
    """Bytes that this process holds of `tensors`: of a sharded one its own part, of a sparse one its values and indices."""
    return float(sum(_bytes(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)))


def _bytes(tensor: torch.Tensor) -> float:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:  # a tensor made of others: DTensor's local part, an 8-bit state's codes and scales
        return held_bytes(getattr(tensor, name) for name in flatten()[0])
    if tensor.is_sparse:
        return held_bytes([tensor._values(), tensor._indices()])
    return tensor.numel() * tensor.element_size()


def state_bytes(optimizer: torch.optim.Optimizer) -> float:
    """Bytes of the optimizer's states (its step counters too)."""
    return held_bytes(value for values in optimizer.state.values() for value in values.values())


def saved_bytes(forward: Callable[[], torch.Tensor], besides: Iterable[torch.Tensor]) -> tuple[torch.Tensor, float]:
    """What `forward` returns, and the bytes that it saved for the backward pass, each storage once.

    Parameters and `besides` (the batch) are not counted: they are there anyway. Copies of weights that autocast made are.
    """
    known = {part.untyped_storage().data_ptr() for tensor in besides for part in _plain(tensor)}
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        for part in _plain(tensor):
            storage = part.untyped_storage()
            if storage.data_ptr() not in known and not isinstance(_root(part), torch.nn.Parameter):
                found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
    return result, float(sum(found.values()))


def _root(tensor: torch.Tensor) -> Any:
    """What `tensor` is a view of; itself where it is none."""
    return tensor if tensor._base is None else tensor._base


def _plain(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with a storage that `tensor` is made of."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [] if tensor.is_sparse else [tensor]
    parts = [getattr(tensor, name) for name in flatten()[0]]  # a DTensor's mesh among them
    return [plain for part in parts if isinstance(part, torch.Tensor) for plain in _plain(part)]


def allocator_figures(device: torch.device) -> dict[str, float]:
    """The allocator's own figures in bytes, and how often it had to free its cache and try again; empty where it tells none."""
    return {f"memory.{name}": value for name, value in allocator_stats(device).items()}
