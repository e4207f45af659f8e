"""The memory of a workload's device: the limit, the peak, the figures of its allocator, and the
settings of glibc's heap.

On CUDA torch's caching allocator counts what it has taken from the system and what is in use. On a
CPU tensors come from the C library, see `agent.counters`.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpuconsole.agent.counters import glibc, heap_stats
from gpuconsole.model.knobs.catalogue import Knobs

# --- the allocator --------------------------------------------------------------------------------

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameter numbers of mallopt (malloc.h)."""
MAX_MMAP_THRESHOLD_KB = 32 * 1024
"""glibc's DEFAULT_MMAP_THRESHOLD_MAX on 64 bits."""
KB = 1024
CUDA_FIGURES = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "allocated_peak_bytes": "allocated_bytes.all.peak",
    "reserved_peak_bytes": "reserved_bytes.all.peak",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "alloc_retries": "num_alloc_retries",
}
"""Our names for figures of torch.cuda.memory_stats."""


def allocator_stats(device: torch.device) -> dict[str, float]:
    """The present figures of the allocator that serves `device`; empty where it has none.

    CUDA: the keys of CUDA_FIGURES; `alloc_retries` counts how often the allocator freed its cache
    and tried again. CPU: see `heap_stats`.
    """
    if device.type != "cuda":
        return heap_stats() if device.type == "cpu" else {}
    stats = torch.cuda.memory_stats(device)
    return {name: float(stats.get(theirs, 0)) for name, theirs in CUDA_FIGURES.items()}


def allocator_name(device: torch.device) -> str:
    """The source of `allocator_stats`, for people."""
    return (
        "torch.cuda.memory_stats"
        if device.type == "cuda"
        else "glibc mallinfo2, all of this process"
    )


@contextmanager
def watched_heap_peaks() -> Iterator[dict[str, float]]:
    """Yields a dictionary. While the block trains, the dictionary receives the peaks of allocated
    and reserved host memory.

    glibc keeps no peaks. So it is read whenever autograd saves a tensor for the backward pass or
    takes a saved tensor: memory is fullest between those two moments. Memory that an operator uses
    internally is not seen.
    """
    peaks: dict[str, float] = {}

    def read(tensor: torch.Tensor) -> torch.Tensor:
        for name, value in heap_stats().items():
            peak = name.replace("_bytes", "_peak_bytes")
            peaks[peak] = max(value, peaks.get(peak, 0.0))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(read, read):
        yield peaks


def fix_mmap_threshold(kilobytes: int) -> bool:
    """Make glibc map each block of at least that size individually, so that freeing the block
    returns its memory. 0 leaves glibc alone.

    Without this call glibc raises the threshold to the size of the largest mapped block that was
    freed (at most 32 MB); smaller blocks then stay in the heap. Returns whether glibc accepted the
    setting.
    """
    library = glibc()
    return bool(
        kilobytes and library is not None and library.mallopt(M_MMAP_THRESHOLD, kilobytes * KB)
    )


def settle_heap() -> None:
    """Bring glibc's automatic threshold to its end: free one mapped block of nearly the largest
    size that raises the threshold.

    Otherwise the first larger batch of a probe or a trial does so in the middle of a run: from then
    on glibc keeps twice as much freed memory, each step causes some thousand page faults less, and
    the probe has made the job a few percent faster.
    """
    if glibc() is not None:
        torch.empty(MAX_MMAP_THRESHOLD_KB * KB - 64 * KB, dtype=torch.uint8)


def keep_freed_memory(megabytes: int, mmap_threshold_kb: int = 0) -> bool:
    """Make glibc keep up to that much freed memory at the end of the heap, so that the tensors of
    the next step find mapped pages. 0 leaves glibc alone. Returns whether glibc accepted the
    setting.

    Without this call glibc returns what exceeds twice the mmap threshold, and each step faults
    those pages in again, zeroed. Either setting ends glibc's automatic mmap threshold, so this
    function sets the threshold too: at its largest value most blocks lie in the heap.
    """
    library = glibc()
    if not megabytes or library is None:
        return False
    fix_mmap_threshold(mmap_threshold_kb or MAX_MMAP_THRESHOLD_KB)
    return bool(library.mallopt(M_TRIM_THRESHOLD, megabytes * KB * KB))


# --- the device -----------------------------------------------------------------------------------

MB = 2**20
PEAKS = ("allocated_peak_bytes", "reserved_peak_bytes")
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
OLD_NAME_ENDS_IN = (2, 11)
"""Before torch 2.9 only the old name, PYTORCH_CUDA_ALLOC_CONF, exists. Torch 2.9 and 2.10 read the
new name, but ignore expandable_segments in it (pytorch #183387). From 2.11 on the new name is
enough, and torch warns about the old one."""


def limit_bytes(device: torch.device, knobs: Knobs) -> float:
    """The memory that the run may use: `memory_limit_mb`, but at most the device's memory (on a CPU
    the host's)."""
    limit = float(int(knobs.get("memory_limit_mb", 0)) * MB)
    if limit and device.type != "cuda":
        return limit  # only a reference for the rules
    total = _total_bytes(device)
    return min(limit, total) if limit else total


def enforce_limit(device: torch.device, knobs: Knobs) -> None:
    """Make CUDA's allocator refuse more than `memory_limit_mb`. No CPU allocator can; there the
    limit is only a reference for the rules."""
    if device.type == "cuda" and knobs.get("memory_limit_mb"):
        torch.cuda.set_per_process_memory_fraction(
            limit_bytes(device, knobs) / _total_bytes(device), device
        )


def _total_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def set_up_allocator(knobs: Knobs) -> None:
    """Configure the allocators. Call this before the first use of CUDA in the process: CUDA's
    allocator reads the environment only then."""
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


class MemoryPeaks:
    """The job's peaks of memory since its start or since the last change, without the memory that
    probes used.

    A probe empties the allocator's cache and restarts the allocator's own peaks. So the peaks
    before the probe are kept here.
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
        return {
            name: max(present[name], self._kept.get(name, 0.0)) for name in PEAKS if name in present
        }

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
            if allocator_stats(self._device).get("reserved_bytes", 0.0) > kept.get(
                "reserved_peak_bytes", math.inf
            ):
                # the allocator caches memory of the block, more than the job has reserved so far
                torch.cuda.empty_cache()
            restart_peak(self._device)
            self._kept = kept


def peak_bytes(device: torch.device) -> float:
    """Peak device memory that this process allocated; on a CPU its peak resident set."""
    if device.type == "cuda":
        # torch.cuda.max_memory_allocated sorts all figures of the allocator, which takes 160 µs
        return float(
            torch.cuda.memory_stats_as_nested_dict(device)
            .get("allocated_bytes", {})
            .get("all", {})
            .get("peak", 0)
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def forget_peak(device: torch.device) -> None:
    """Restart the peak and free cached memory, because buffers of a calibration do not belong to
    the workload (CUDA only)."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def restart_peak(device: torch.device) -> None:
    """Make `peak_bytes` report the peak from now on (CUDA only: the peak resident set of a process
    cannot be reset)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
