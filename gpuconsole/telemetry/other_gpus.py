"""GPUs that NVML does not know: those of AMD (ROCm) and Apple (MPS). They are listed where the installed torch can use them. Their metrics are n/a.

Untested on hardware.
"""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import GPU_METRICS
from gpuconsole.telemetry.source import Readings, Reasons

NODES = Path("/sys/class/kfd/kfd/topology/nodes")
"""AMD's kernel driver describes its processors there, GPUs and CPUs, in ROCm's order."""
VRAM = (1, 2)
"""Heap types of a GPU's own memory (kfd_topology.h: HSA_MEM_HEAP_TYPE_FB_PUBLIC and _PRIVATE)."""
AMD = "gpuconsole reads the counters of NVIDIA GPUs only; rocm-smi shows those of AMD"
APPLE = "gpuconsole reads the counters of NVIDIA GPUs only; powermetrics shows those of Apple"


class OtherGpus:
    """A source without values: each metric has the reason."""

    name = "other GPUs"

    def __init__(self, devices: list[Device], reason: str) -> None:
        self._devices = devices
        self._reasons: Reasons = {device.id: dict.fromkeys((metric.name for metric in GPU_METRICS), reason) for device in devices}

    def devices(self) -> list[Device]:
        return self._devices

    def prime(self) -> None:
        """Nothing is read."""

    def read(self, t: float) -> Readings:
        return []

    def unavailable(self) -> Reasons:
        return self._reasons

    def slow(self) -> str:
        return ""

    def under_way(self) -> str:
        return ""


def find_other_gpus() -> OtherGpus | None:
    """The GPUs of this machine that torch can use without CUDA; None where there are none.

    Many desktop processors contain a GPU of AMD. So such a GPU counts only where torch is a ROCm build.
    """
    amd, apple = _amd(NODES), sys.platform == "darwin" and platform.machine() == "arm64"
    if not amd and not apple:
        return None
    torch = torch_version() or ""
    if amd and "rocm" in torch:
        return OtherGpus(amd, AMD)
    return OtherGpus([Device("gpu:0", "Apple GPU (mps)")], APPLE) if apple and torch else None


def _amd(nodes: Path) -> list[Device]:
    devices: list[Device] = []
    try:
        numbers = sorted(int(folder.name) for folder in nodes.iterdir() if folder.name.isdigit())
        for number in numbers:
            facts = _properties(nodes / str(number) / "properties")
            if facts.get("simd_count"):  # a CPU has none
                banks = [_properties(bank) for bank in (nodes / str(number) / "mem_banks").glob("*/properties")]
                memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in VRAM)
                name = f"AMD {architecture(facts.get('gfx_target_version', 0))}"
                devices.append(Device(f"gpu:{len(devices)}", name, memory))
    except OSError:  # no such driver, or no permission
        return []
    return devices


def architecture(version: int) -> str:
    """LLVM's name of the architecture: 90402 is gfx942."""
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}"


def _properties(file: Path) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", file.read_text(), re.MULTILINE)}


def torch_version() -> str | None:
    """The version of the installed torch; None without torch."""
    from importlib import metadata  # it costs the sampler memory, and few machines need it

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
