"""Memory that new tensors may use: of the host, and of a GPU, whose memory may be that of the host.

On a GPU with unified memory, `cudaMemGetInfo` reports the host's MemFree as free (measured on a
GB10, unsloth PR 10704), and where the GPU's memory is a NUMA node of Linux (Grace Hopper), files
are cached in it. Both count the page cache as used. The kernel gives it back as soon as an
allocation needs it. Nothing here waits for a GPU.
"""

from __future__ import annotations

import os
import re
from typing import Any

HOST = "/proc/meminfo"
NODES = "/sys/devices/system/node"
GPUS = "/proc/driver/nvidia/gpus"
"""The driver's folder of each GPU by its PCI address; `numa_status` in it names the NUMA node of
its memory."""
LIKE_HOST = (0.9, 1.02)
"""Limits of the memory of a GPU over MemTotal. Between these limits the GPU has unified memory. The
driver may reserve a part of the memory."""
_ENTRY = re.compile(r"(\w+(?:\(\w+\))?):\s+(\d+) kB")


def host_bytes() -> tuple[float, float] | None:
    """Return MemAvailable and MemTotal of the host in bytes; None if /proc/meminfo does not have
    both."""
    entries = _entries(HOST)
    if "MemAvailable" not in entries or "MemTotal" not in entries:
        return None
    return entries["MemAvailable"], entries["MemTotal"]


def free_and_total(device: Any) -> tuple[float, float]:
    """Return the bytes of the CUDA device that new tensors may use, and all its bytes. What the
    kernel can give back counts as free."""
    import torch

    free, total = map(float, torch.cuda.mem_get_info(device))
    properties = torch.cuda.get_device_properties(device)
    return max(free, min(total, _available(properties, total))), total


def _available(properties: Any, total: float) -> float:
    """Return the bytes that the kernel can give to the GPU, its caches included; 0 for a GPU with a
    memory of its own."""
    node = _node_of(properties)
    if node is not None:
        entries = _entries(f"{NODES}/node{node}/meminfo")
        return sum(
            entries.get(name, 0.0)
            for name in ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
        )
    host = host_bytes()
    if host is None or not getattr(properties, "is_integrated", False):
        return 0.0
    low, high = LIKE_HOST
    return host[0] if low * host[1] <= total <= high * host[1] else 0.0


def pci_address(properties: Any) -> tuple[int, int, int] | None:
    """Return domain, bus and device of a GPU from torch's properties of it; None where torch does
    not report them."""
    domain, bus, device = (
        getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")
    )
    return (domain, bus, device) if type(domain) is type(bus) is type(device) is int else None


def _node_of(properties: Any) -> int | None:
    """Return the number of the NUMA node that consists of the GPU's memory; None where there is no
    such node, or the driver does not report it."""
    parts = pci_address(properties)
    if parts is None:
        return None
    address = "{:04x}:{:02x}:{:02x}.0".format(*parts)
    try:
        with open(
            os.path.join(GPUS, address, "numa_status"), encoding="ascii", errors="replace"
        ) as file:
            match = re.search(r"^Node:\s*(\d+)", file.read(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


def _entries(path: str) -> dict[str, float]:
    """Return the entries of a meminfo file in bytes; empty where it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return {name: 1024.0 * float(size) for name, size in _ENTRY.findall(file.read())}
    except OSError:
        return {}
