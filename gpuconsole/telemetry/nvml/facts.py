"""Fixed facts about a GPU: name, memory, location and modes. A fact that the driver withholds stays empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuconsole.model.machine import Device
from gpuconsole.model.peaks import peaks_of
from gpuconsole.telemetry.nvml.library import CallFailed, call
from gpuconsole.telemetry.nvml.shared_memory import Memory, memory_of

UNKNOWN_NAME = "unknown GPU"
ARCHITECTURES = {2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell"}
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_MASK_WORDS = 64  # of 64 bits: CPUs up to 4096
_NODE_SCOPE = 0


def describe(device: str, handle: Any, nvlinks: int | None, memory: Memory) -> Device:
    """`nvlinks`: number of active NVLinks; None: unknown."""
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
            for label, text in (*((label, read(handle)) for label, read in _FACTS.items()), ("memory_kind", memory.kind))
            if text
        },
    )


def describe_slice(device: str, handle: Any) -> Device:
    """A MIG slice as a device. Its peaks are unknown: the datasheet describes the whole GPU."""
    name = str(fact("nvmlDeviceGetName", handle) or "MIG slice")
    return Device(device, name, memory_of(handle, in_slices=True).total, str(fact("nvmlDeviceGetUUID", handle) or ""))


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
    bits = [64 * word + bit for word, value in enumerate(mask) for bit in range(64) if value >> bit & 1]
    spans: list[list[int]] = []
    for bit in bits:
        if spans and bit == spans[-1][1] + 1:
            spans[-1][1] = bit
        else:
            spans.append([bit, bit])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


_ON_OFF = {0: "off", 1: "on"}
_FACTS: dict[str, Callable[[Any], str]] = {
    "architecture": _architecture,
    "compute_capability": _capability,
    "pci": pci_address,
    "numa_node": _numa_node,
    "cpu_affinity": _cpu_affinity,
    "persistence": _mode("nvmlDeviceGetPersistenceMode", _ON_OFF),
    "ecc": _mode("nvmlDeviceGetEccMode", _ON_OFF),
    "mig": _mode("nvmlDeviceGetMigMode", _ON_OFF),
    "compute_mode": _mode("nvmlDeviceGetComputeMode", _COMPUTE_MODES),
}


def _pcie(handle: Any) -> str:
    """The maximum of the link. An idle GPU lowers the current generation to save power."""
    generation = fact("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = fact("nvmlDeviceGetMaxPcieLinkWidth", handle)
    return f"gen{generation} x{width}" if generation and width else ""


def _nvlink_text(links: int | None) -> str:
    if links is None:
        return ""
    return {0: "none", 1: "1 link"}.get(links, f"{links} links")
