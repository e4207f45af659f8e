"""Fixed facts about a GPU: name, memory, location and modes. A fact that the driver withholds stays
empty. And the memory of a GPU that shares it with the host:

- Unified memory (GB10, Jetson): the GPU has no memory of its own. NVML does not support the
  question for it, beside a utilization that works; another driver answers with the size of the
  host's memory, and counts the page cache as used.
- The GPU's memory is a NUMA node of Linux (Grace Hopper, GB200): the system may keep files there,
  which NVML counts as used.

In both cases the kernel gives the memory of cached files back as soon as an allocation needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from gpuconsole.model.machine import UNIFIED, Device, Process
from gpuconsole.model.peaks import peaks_of
from gpuconsole.telemetry.nvml.calls import MEMORY, ask, is_plausible
from gpuconsole.telemetry.nvml.library import NOT_SUPPORTED, CallFailed, call

# --- memory ---------------------------------------------------------------------------------------

NODES = Path("/sys/devices/system/node")
LIKE_HOST = 0.001
"""A driver that answers with the host's memory names its size to the byte; a card of its own does
not."""
NO_SIZES = "the driver does not report the memory of each process"
NO_RESERVE = "unified memory: the driver reserves no part of it"
SOURCE, PROCESSES, WITHOUT_FILES = "host", "nvml processes", "nvml, without files"


class MemoryKind(NamedTuple):
    """`kind`: UNIFIED, `NUMA node 1 of the host`, or empty for a memory of its own. `node`: the
    NUMA node that the memory is."""

    total: int
    kind: str = ""
    node: int | None = None


def memory_of(handle: Any, in_slices: bool) -> MemoryKind:
    """Return the size of the memory of a GPU, 0 where the driver does not tell it, and its kind.
    `in_slices`: the GPU is in MIG mode, where the driver supports less."""
    host = psutil.virtual_memory().total
    try:
        total = ask(MEMORY, handle)["gpu.hbm_total_bytes"]
    except CallFailed as failure:
        unified = (
            failure.code == NOT_SUPPORTED
            and not in_slices
            and _works("nvmlDeviceGetUtilizationRates", handle) is not None
        )
        return MemoryKind(host, UNIFIED) if unified else MemoryKind(0)
    if not is_plausible("gpu.hbm_total_bytes", total):
        return MemoryKind(0)
    if abs(total - host) <= LIKE_HOST * host:
        return MemoryKind(host, UNIFIED)
    node = _works("nvmlDeviceGetNumaNodeId", handle)
    if node is None or in_slices or not is_memory_only(node):
        return MemoryKind(int(total))
    return MemoryKind(int(total), f"NUMA node {node} of the host", node)


def is_memory_only(node: int, nodes: Path = NODES) -> bool:
    """Return whether a NUMA node has no CPU, as that of a GPU."""
    try:
        return (
            not (nodes / f"node{node}" / "cpulist")
            .read_text(encoding="ascii", errors="replace")
            .strip()
        )
    except OSError:
        return False


def _works(function: str, handle: Any) -> Any:
    try:
        return call(function, handle)
    except CallFailed:
        return None


def unified_values() -> dict[str, float]:
    """Return the size of the host's memory, and what of it both the host and the GPU can still
    allocate."""
    host = psutil.virtual_memory()
    return {"gpu.hbm_total_bytes": float(host.total), "gpu.hbm_free_bytes": float(host.available)}


def used_by(processes: list[Process]) -> float | None:
    """Return the bytes of these processes of one GPU; None where the driver does not report them
    all."""
    sizes = [process.memory_bytes for process in processes]
    return None if None in sizes else float(sum(filter(None, sizes)))


def without_files(values: dict[str, float], node: int, nodes: Path = NODES) -> dict[str, float]:
    """Return the used and the free bytes of a GPU whose memory is a NUMA node. Cached files count
    as free memory. `values`: the figures of NVML. Empty if the kernel does not report the cached
    files of the node."""
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


# --- facts ----------------------------------------------------------------------------------------

UNKNOWN_NAME = "unknown GPU"
ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
}
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_MASK_WORDS = 64  # of 64 bits: CPUs up to 4096
_NODE_SCOPE = 0


def describe(
    device: str, handle: Any, nvlinks: Sequence[bool] | None, memory: MemoryKind
) -> Device:
    """`nvlinks`: whether each NVLink is active; None: unknown."""
    name = str(fact("nvmlDeviceGetName", handle) or UNKNOWN_NAME)
    return Device(
        id=device,
        name=name,
        uuid=str(fact("nvmlDeviceGetUUID", handle) or ""),
        memory_bytes=memory.total,
        peaks=peaks_of(name),
        pcie=_pcie(handle),
        nvlink=_nvlink_text(nvlinks),
        facts={
            label: text
            for label, text in (
                *((label, read(handle)) for label, read in _FACTS.items()),
                ("memory_kind", memory.kind),
            )
            if text
        },
    )


def describe_slice(device: str, handle: Any) -> Device:
    """A MIG slice as a device. Its peaks are unknown: the datasheet describes the whole GPU."""
    name = str(fact("nvmlDeviceGetName", handle) or "MIG slice")
    return Device(
        device,
        name,
        memory_of(handle, in_slices=True).total,
        str(fact("nvmlDeviceGetUUID", handle) or ""),
    )


def is_mig_on(handle: Any) -> bool:
    modes = fact("nvmlDeviceGetMigMode", handle)
    return modes is not None and modes[0] == 1


def pci_address(handle: Any) -> str:
    info = fact("nvmlDeviceGetPciInfo", handle)
    if info is None:
        return ""
    raw = info.busId
    return (raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)).lower()


def fact(function: str, *arguments: Any) -> Any:
    """The answer of the call; None where the call fails."""
    try:
        return call(function, *arguments)
    except CallFailed:
        return None


def _architecture(handle: Any) -> str:
    code = fact("nvmlDeviceGetArchitecture", handle)
    return ARCHITECTURES.get(code, "") if code is not None else ""


def _capability(handle: Any) -> str:
    capability = fact("nvmlDeviceGetCudaComputeCapability", handle)
    return f"{capability[0]}.{capability[1]}" if capability is not None else ""


def _mode(function: str, names: dict[int, str]) -> Callable[[Any], str]:
    def read(handle: Any) -> str:
        answer = fact(function, handle)
        code = answer[0] if isinstance(answer, list) else answer
        return names.get(code, "") if code is not None else ""

    return read


def _cpu_affinity(handle: Any) -> str:
    return _ranges(fact("nvmlDeviceGetCpuAffinity", handle, _MASK_WORDS))


def _numa_node(handle: Any) -> str:
    return _ranges(fact("nvmlDeviceGetMemoryAffinity", handle, _MASK_WORDS, _NODE_SCOPE))


def _ranges(mask: Any) -> str:
    """A bit mask in words of 64 as `0-31,64-95`."""
    if mask is None:
        return ""
    bits = [
        64 * word + bit for word, value in enumerate(mask) for bit in range(64) if value >> bit & 1
    ]
    spans: list[list[int]] = []
    for bit in bits:
        if spans and bit == spans[-1][1] + 1:
            spans[-1][1] = bit
        else:
            spans.append([bit, bit])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


_ON_OFF = {0: "off", 1: "on"}


def _pending_ecc(handle: Any) -> str:
    """The ECC mode after the next reset, where it is another one than now."""
    modes = fact("nvmlDeviceGetEccMode", handle)
    return "" if modes is None or modes[0] == modes[1] else _ON_OFF.get(modes[1], "")


_FACTS: dict[str, Callable[[Any], str]] = {
    "architecture": _architecture,
    "compute_capability": _capability,
    "pci": pci_address,
    "numa_node": _numa_node,
    "cpu_affinity": _cpu_affinity,
    "persistence": _mode("nvmlDeviceGetPersistenceMode", _ON_OFF),
    "ecc": _mode("nvmlDeviceGetEccMode", _ON_OFF),
    "ecc_pending": _pending_ecc,
    "mig": _mode("nvmlDeviceGetMigMode", _ON_OFF),
    "compute_mode": _mode("nvmlDeviceGetComputeMode", _COMPUTE_MODES),
}


def _pcie(handle: Any) -> str:
    """The maximum of the link. An idle GPU lowers the current generation to save power."""
    generation = fact("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = fact("nvmlDeviceGetMaxPcieLinkWidth", handle)
    return f"gen{generation} x{width}" if generation and width else ""


def _nvlink_text(links: Sequence[bool] | None) -> str:
    """`18 links`, `12 of 18 links` where some are down, `none` for a GPU that has none."""
    if links is None:
        return ""
    if not links:
        return "none"
    up = "" if all(links) else f"{sum(links)} of "
    return f"{up}{len(links)} {'link' if len(links) == 1 else 'links'}"
