"""The memory of a GPU that shares it with the host.

- Unified memory (GB10, Jetson): the GPU has no memory of its own. NVML does not support the question for it, beside a utilization that works; another driver
  answers with the size of the host's memory, and counts the page cache as used.
- The GPU's memory is a NUMA node of Linux (Grace Hopper, GB200): the system may keep files there, which NVML counts as used.

In both cases the kernel gives the memory of cached files back as soon as an allocation needs it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from gpuconsole.model.machine import UNIFIED, Process
from gpuconsole.telemetry.nvml.calls import MEMORY, ask, is_plausible
from gpuconsole.telemetry.nvml.library import NOT_SUPPORTED, CallFailed, call

NODES = Path("/sys/devices/system/node")
LIKE_HOST = 0.001
"""A driver that answers with the host's memory names its size to the byte; a card of its own does not."""
NO_SIZES = "the driver does not report the memory of each process"
NO_RESERVE = "unified memory: the driver reserves no part of it"
SOURCE, PROCESSES, WITHOUT_FILES = "host", "nvml processes", "nvml, without files"


class Memory(NamedTuple):
    """`kind`: UNIFIED, `NUMA node 1 of the host`, or empty for a memory of its own. `node`: the NUMA node that the memory is."""

    total: int
    kind: str = ""
    node: int | None = None


def memory_of(handle: Any, in_slices: bool) -> Memory:
    """Return the size of the memory of a GPU, 0 where the driver does not tell it, and its kind. `in_slices`: the GPU is in MIG mode, where the driver supports less."""
    host = psutil.virtual_memory().total
    try:
        total = ask(MEMORY, handle)["gpu.hbm_total_bytes"]
    except CallFailed as failure:
        unified = failure.code == NOT_SUPPORTED and not in_slices and _works("nvmlDeviceGetUtilizationRates", handle) is not None
        return Memory(host, UNIFIED) if unified else Memory(0)
    if not is_plausible("gpu.hbm_total_bytes", total):
        return Memory(0)
    if abs(total - host) <= LIKE_HOST * host:
        return Memory(host, UNIFIED)
    node = _works("nvmlDeviceGetNumaNodeId", handle)
    if node is None or in_slices or not is_memory_only(node):
        return Memory(int(total))
    return Memory(int(total), f"NUMA node {node} of the host", node)


def is_memory_only(node: int, nodes: Path = NODES) -> bool:
    """Return whether a NUMA node has no CPU, as that of a GPU."""
    try:
        return not (nodes / f"node{node}" / "cpulist").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return False


def _works(function: str, handle: Any) -> Any:
    try:
        return call(function, handle)
    except CallFailed:
        return None


def unified_values() -> dict[str, float]:
    """Return the size of the host's memory, and what of it both the host and the GPU can still allocate."""
    host = psutil.virtual_memory()
    return {"gpu.hbm_total_bytes": float(host.total), "gpu.hbm_free_bytes": float(host.available)}


def used_by(processes: list[Process]) -> float | None:
    """Return the bytes of these processes of one GPU; None where the driver does not report them all."""
    sizes = [process.memory_bytes for process in processes]
    return None if None in sizes else float(sum(filter(None, sizes)))


def without_files(values: dict[str, float], node: int, nodes: Path = NODES) -> dict[str, float]:
    """Return the used and the free bytes of a GPU whose memory is a NUMA node. Cached files count as free memory. `values`: the figures of NVML. Empty if the kernel
    does not report the cached files of the node."""
    used, free = values.get("gpu.hbm_used_bytes"), values.get("gpu.hbm_free_bytes")
    try:
        text = (nodes / f"node{node}" / "meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    sizes = re.findall(r"(?:Active\(file\)|Inactive\(file\)|SReclaimable):\s+(\d+) kB", text)
    if used is None or free is None or not sizes:
        return {}
    files = min(used, 1024.0 * sum(map(int, sizes)))
    return {"gpu.hbm_used_bytes": used - files, "gpu.hbm_free_bytes": free + files}
