"""The links between the GPUs of this machine."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from gpuconsole.model.machine import Link
from gpuconsole.telemetry.nvml.facts import fact, pci_address
from gpuconsole.telemetry.nvml.gpu import Gpu
from gpuconsole.telemetry.nvml.library import meter

# nvmlGpuTopologyLevel_t in nvidia-smi's words.
_LEVELS = {0: "X", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_TO_GPU, _TO_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t
_SWITCH = "switch"
_MOST_GPUS = 128
"""No machine has more GPUs, and the number of pairs grows with the square."""


def links_between(gpus: list[Gpu]) -> list[Link]:
    """The best path of each pair: NVLink if present, otherwise PCIe. A pair that the driver does not report is left out."""
    if len(gpus) > _MOST_GPUS:
        return []
    ends = {gpu.device.id: _nvlink_ends(gpu) for gpu in gpus}
    places = {gpu.device.id: pci_address(gpu.handle) for gpu in gpus}
    links = []
    for gpu, other in combinations(gpus, 2):
        a, b = gpu.device.id, other.device.id
        direct = ends[a][places[b]]
        through_switch = min(ends[a][_SWITCH], ends[b][_SWITCH])
        nvlinks = max(direct, through_switch)
        if nvlinks:
            links.append(Link(a, b, f"NV{nvlinks}"))
            continue
        meter.device = a
        level = fact("nvmlDeviceGetTopologyCommonAncestor", gpu.handle, other.handle)
        if level in _LEVELS:
            links.append(Link(a, b, _LEVELS[level]))
    return links


def _nvlink_ends(gpu: Gpu) -> Counter[str]:
    """The number of the GPU's NVLinks to each PCI address, or to a switch."""
    ends: Counter[str] = Counter()
    meter.device = gpu.device.id
    for link in gpu.links_up():
        kind = fact("nvmlDeviceGetNvLinkRemoteDeviceType", gpu.handle, link)
        if kind == _TO_SWITCH:
            ends[_SWITCH] += 1
        elif kind == _TO_GPU:
            info = fact("nvmlDeviceGetNvLinkRemotePciInfo", gpu.handle, link)
            if info is not None:
                raw = info.busId
                ends[(raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)).lower()] += 1
    return ends
