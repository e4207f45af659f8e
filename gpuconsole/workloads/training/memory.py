"""Device memory: the limit that a run may use, its peak, and what its tensors take by part."""

from __future__ import annotations

import os
import resource

import torch

from gpuconsole.model.knobs import Knobs

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
    """Put `pytorch_alloc_conf` where the CUDA allocator reads it: in the environment, before its first use in this process."""
    conf = str(knobs.get("pytorch_alloc_conf", "default"))
    if conf != "default":
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
