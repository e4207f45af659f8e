"""The memory of a workload's device: the limit, the peak, and the settings of its allocator."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.allocator import allocator_stats, fix_mmap_threshold, keep_freed_memory, settle_heap

MB = 2**20
PEAKS = ("allocated_peak_bytes", "reserved_peak_bytes")
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
OLD_NAME_ENDS_IN = (2, 11)
"""Before torch 2.9 only the old name, PYTORCH_CUDA_ALLOC_CONF, exists. Torch 2.9 and 2.10 read the new name, but ignore expandable_segments
in it (pytorch #183387). From 2.11 on the new name is enough, and torch warns about the old one."""


def limit_bytes(device: torch.device, knobs: Knobs) -> float:
    """The memory that the run may use: `memory_limit_mb`, but at most the device's memory (on a CPU the host's)."""
    limit = float(int(knobs.get("memory_limit_mb", 0)) * MB)
    if limit and device.type != "cuda":
        return limit  # only a reference for the rules
    total = _total_bytes(device)
    return min(limit, total) if limit else total


def enforce_limit(device: torch.device, knobs: Knobs) -> None:
    """Make CUDA's allocator refuse more than `memory_limit_mb`. No CPU allocator can; there the limit is only a reference for the rules."""
    if device.type == "cuda" and knobs.get("memory_limit_mb"):
        torch.cuda.set_per_process_memory_fraction(limit_bytes(device, knobs) / _total_bytes(device), device)


def _total_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def set_up_allocator(knobs: Knobs) -> None:
    """Configure the allocators. Call this before the first use of CUDA in the process: CUDA's allocator reads the environment only then."""
    mmap_threshold_kb = int(knobs.get("malloc_mmap_threshold_kb", 0))
    if not mmap_threshold_kb:
        settle_heap()
    fix_mmap_threshold(mmap_threshold_kb)
    keep_freed_memory(int(knobs.get("malloc_trim_threshold_mb", 0)), mmap_threshold_kb)
    conf = str(knobs.get("pytorch_alloc_conf", "default"))
    if conf != "default":
        for name in ALLOCATOR_VARIABLES:  # torch reads either, the old name first where it is set
            os.environ.pop(name, None)
        newer = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= OLD_NAME_ENDS_IN
        for name in ALLOCATOR_VARIABLES[:1] if newer else ALLOCATOR_VARIABLES:
            os.environ[name] = conf


class Peaks:
    """The job's peaks of memory since its start or since the last change, without the memory that probes used.

    A probe empties the allocator's cache and restarts the allocator's own peaks. So the peaks before the probe are kept here.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[str, float] = {}

    def allocated_bytes(self) -> float:
        """Peak of the memory in use; on a CPU the peak resident set of the whole process."""
        return max(self._kept.get("allocated_peak_bytes", 0.0), peak_bytes(self._device))

    def figures(self) -> dict[str, float]:
        """`allocated_peak_bytes` and `reserved_peak_bytes` (CUDA only)."""
        present = allocator_stats(self._device)
        return {name: max(present[name], self._kept.get(name, 0.0)) for name in PEAKS if name in present}

    def forget(self) -> None:
        """Restart the peaks and free cached memory."""
        self._kept = {}
        forget_peak(self._device)

    def restart(self) -> None:
        """Restart the peaks."""
        self._kept = {}
        restart_peak(self._device)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """On a GPU the memory that is used in this block does not count."""
        kept = {**self.figures(), "allocated_peak_bytes": self.allocated_bytes()}
        try:
            yield
        finally:
            if allocator_stats(self._device).get("reserved_bytes", 0.0) > kept.get("reserved_peak_bytes", math.inf):
                torch.cuda.empty_cache()  # the allocator caches memory of the block, more than the job has reserved so far
            restart_peak(self._device)
            self._kept = kept


def peak_bytes(device: torch.device) -> float:
    """Peak device memory that this process allocated; on a CPU its peak resident set."""
    if device.type == "cuda":
        # torch.cuda.max_memory_allocated sorts all figures of the allocator, which takes 160 µs
        return float(torch.cuda.memory_stats_as_nested_dict(device).get("allocated_bytes", {}).get("all", {}).get("peak", 0))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def forget_peak(device: torch.device) -> None:
    """Restart the peak and free cached memory, because buffers of a calibration do not belong to the workload (CUDA only)."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def restart_peak(device: torch.device) -> None:
    """Make `peak_bytes` report the peak from now on (CUDA only: the peak resident set of a process cannot be reset)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
