"""What the allocator says of its memory: how much it has taken from the system, and how much of that is in use.

On CUDA torch's caching allocator counts both. On a CPU tensors come from the C library; glibc tells the same of all its
arenas through mallinfo2 (glibc 2.33 or newer), and blocks that it maps one by one count as in use.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""mallopt's numbers for them (malloc.h)."""
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
"""Our names for torch.cuda.memory_stats's."""


class _MallInfo(ctypes.Structure):
    """struct mallinfo2 of glibc's malloc.h. `arena`: bytes of all heaps; `hblkhd`: in blocks mapped one by one; `uordblks`: in use."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is a glibc that has mallinfo2."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _MallInfo
    return library


def allocator_stats(device: torch.device) -> dict[str, float]:
    """The allocator's figures, now; empty where it tells nothing.

    CUDA: `allocated_bytes`, `reserved_bytes`, their peaks, and how often it had to free its cache and try again. A CPU:
    `heap_allocated_bytes`, `heap_reserved_bytes`, which hold all of the process, libraries too.
    """
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        return {ours: float(stats.get(theirs, 0)) for ours, theirs in CUDA_FIGURES.items()}
    library = _glibc()
    if library is None:
        return {}
    info = library.mallinfo2()
    return {"heap_allocated_bytes": float(info.uordblks + info.hblkhd), "heap_reserved_bytes": float(info.arena + info.hblkhd)}


def allocator_name(device: torch.device) -> str:
    return "torch.cuda.memory_stats" if device.type == "cuda" else "glibc mallinfo2, all of this process"


@contextmanager
def watched_heap_peaks() -> Iterator[dict[str, float]]:
    """Fills the dictionary that it gives with the most that is allocated and reserved on the host while its block trains.

    glibc keeps no peaks, so it is asked whenever a tensor is saved for the backward pass or taken back for it: memory is fullest
    between the two. What an operator uses within itself is not seen.
    """
    peaks: dict[str, float] = {}

    def look(tensor: torch.Tensor) -> torch.Tensor:
        for name, value in allocator_stats(torch.device("cpu")).items():
            peak = name.replace("_bytes", "_peak_bytes")
            peaks[peak] = max(value, peaks.get(peak, 0.0))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(look, look):
        yield peaks


def fix_mmap_threshold(kilobytes: int) -> bool:
    """Let glibc map every block of at least that size on its own, so that freeing it gives it back. 0 leaves glibc alone.

    By itself glibc raises the threshold to the largest mapped block freed so far (at most 32 MB); what is smaller then stays in
    the heap. Returns whether glibc took it.
    """
    library = _glibc()
    return bool(kilobytes and library is not None and library.mallopt(M_MMAP_THRESHOLD, kilobytes * KB))


def settle_heap() -> None:
    """Bring glibc's own adjusting to its end: free one mapped block of (nearly) the largest size that it learns from.

    Else the first larger batch, a probe's or a trial's, does it midway: from then on glibc keeps twice as much of what is freed, steps fault
    in some thousand pages less each, and the job is a few percent faster for having been looked at.
    """
    if _glibc() is not None:
        torch.empty(LARGEST_MMAP_THRESHOLD_KB * KB - 64 * KB, dtype=torch.uint8)


def keep_freed_memory(megabytes: int, mmap_threshold_kb: int = 0) -> bool:
    """Let glibc keep up to that much freed memory at the heap's end, so that the next step's tensors find pages that are there already.
    0 leaves glibc alone. Returns whether glibc took it.

    By itself it gives back what is beyond twice the mmap threshold, and every step faults those pages in again, each zeroed anew. Either
    setting ends its own adjusting of the mmap threshold, so that must be set too: at most blocks lie in the heap where it is largest.
    """
    library = _glibc()
    if not megabytes or library is None:
        return False
    fix_mmap_threshold(mmap_threshold_kb or LARGEST_MMAP_THRESHOLD_KB)
    return bool(library.mallopt(M_TRIM_THRESHOLD, megabytes * KB * KB))
