"""The allocator of a workload's device: its figures, and the settings of glibc's heap.

On CUDA torch's caching allocator counts what it has taken from the system and what is in use. On a CPU tensors come from the C library, see `agent.counters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpuconsole.agent.counters import glibc, heap_stats

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameter numbers of mallopt (malloc.h)."""
LARGEST_MMAP_THRESHOLD_KB = 32 * 1024
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

    CUDA: the keys of CUDA_FIGURES; `alloc_retries` counts how often the allocator freed its cache and tried again. CPU: see `heap_stats`.
    """
    if device.type != "cuda":
        return heap_stats() if device.type == "cpu" else {}
    stats = torch.cuda.memory_stats(device)
    return {name: float(stats.get(theirs, 0)) for name, theirs in CUDA_FIGURES.items()}


def allocator_name(device: torch.device) -> str:
    """The source of `allocator_stats`, for people."""
    return "torch.cuda.memory_stats" if device.type == "cuda" else "glibc mallinfo2, all of this process"


@contextmanager
def watched_heap_peaks() -> Iterator[dict[str, float]]:
    """Yields a dictionary. While the block trains, the dictionary receives the peaks of allocated and reserved host memory.

    glibc keeps no peaks. So it is read whenever autograd saves a tensor for the backward pass or takes a saved tensor: memory is fullest
    between those two moments. Memory that an operator uses internally is not seen.
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
    """Make glibc map each block of at least that size individually, so that freeing the block returns its memory. 0 leaves glibc alone.

    Without this call glibc raises the threshold to the size of the largest mapped block that was freed (at most 32 MB); smaller blocks then
    stay in the heap. Returns whether glibc accepted the setting.
    """
    library = glibc()
    return bool(kilobytes and library is not None and library.mallopt(M_MMAP_THRESHOLD, kilobytes * KB))


def settle_heap() -> None:
    """Bring glibc's automatic threshold to its end: free one mapped block of nearly the largest size that raises the threshold.

    Otherwise the first larger batch of a probe or a trial does so in the middle of a run: from then on glibc keeps twice as much freed
    memory, each step causes some thousand page faults less, and the probe has made the job a few percent faster.
    """
    if glibc() is not None:
        torch.empty(LARGEST_MMAP_THRESHOLD_KB * KB - 64 * KB, dtype=torch.uint8)


def keep_freed_memory(megabytes: int, mmap_threshold_kb: int = 0) -> bool:
    """Make glibc keep up to that much freed memory at the end of the heap, so that the tensors of the next step find mapped pages.
    0 leaves glibc alone. Returns whether glibc accepted the setting.

    Without this call glibc returns what exceeds twice the mmap threshold, and each step faults those pages in again, zeroed. Either setting
    ends glibc's automatic mmap threshold, so this function sets the threshold too: at its largest value most blocks lie in the heap.
    """
    library = glibc()
    if not megabytes or library is None:
        return False
    fix_mmap_threshold(mmap_threshold_kb or LARGEST_MMAP_THRESHOLD_KB)
    return bool(library.mallopt(M_TRIM_THRESHOLD, megabytes * KB * KB))
