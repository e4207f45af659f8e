"""A card as the expectation needs it, and the rates that programs reach on it.

The shares of the peaks are typical, not exact. An expectation tells limits apart; it is no forecast of a throughput.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuconsole.model.machine import Peaks

MATMUL_SHARE = 0.75
"""Share of the dense peak that large matrix products reach: 80 to 87 % at best (ml-engineering: A100 87 %, H100 80 %), less within a model."""
CONV_SHARES = ((64, 0.35), (256, 0.6))
"""Share of the dense peak that 3x3 convolutions reach in 16 bits, by channels of the first stage: few channels leave tensor cores idle."""
MEMORY_SHARE = 0.9
"""Share of the datasheet's memory bandwidth that a plain copy reaches (85 to 92 %)."""
LINK_SHARE = 0.8
"""Share of a link's rate that large transfers reach."""
PCIE_BYTES_PER_S = {3: 16e9, 4: 32e9, 5: 64e9, 6: 128e9}
"""One direction of 16 lanes, by generation."""
CONTEXT_BYTES = 1e9
"""Memory of the CUDA context (0.3 to 0.6 GB) and of the workspaces of cuBLAS and cuDNN."""
ALLOCATOR_SHARE = 0.97
"""Share of the memory that tensors can take: the caching allocator rounds blocks up and leaves gaps."""
LAUNCH_S = 8e-6
"""Host time of one operation in a training step without compilation: Python, dispatch, autograd and launch (5 to 10 us on current CPUs)."""
SERVED_LAYER_S = 190e-6
"""Host time of one layer of the embedded server in a decoding iteration: about 22 operations."""
ITERATION_S = 300e-6
"""Host time of an iteration of the embedded server beside its layers: sampling, scheduling, HTTP. The GPU waits during this time."""
ALLREDUCE_S = 25e-6
"""Least time of an all-reduce among the GPUs of one machine."""
DISK_BYTES_PER_S = 1e9
"""A local SSD, written with fsync."""
DECODE_S = 3e-3
"""CPU time to read, decode and augment one photograph of the vision workload."""
BLUR_S = 1.5e-3
"""CPU time of one blur of a photograph (knob transform_cost)."""


@dataclass(frozen=True)
class Card:
    """`memory_bytes`: the whole memory. `count`: cards in the machine; 0: as many as the scenario asks for."""

    name: str
    memory_bytes: float
    peaks: Peaks
    count: int = 0

    @property
    def usable_bytes(self) -> float:
        """Memory that the tensors of one program can take."""
        return ALLOCATOR_SHARE * (self.memory_bytes - CONTEXT_BYTES)

    def flops_per_s(self, precision: str) -> float | None:
        """The dense peak; None where no datasheet states it."""
        peak: float | None = getattr(self.peaks, f"{precision}_flops_per_s", None)
        return peak

    @property
    def bytes_per_s(self) -> float:
        return (self.peaks.memory_bytes_per_s or 0.0) * MEMORY_SHARE

    @property
    def host_bytes_per_s(self) -> float:
        return PCIE_BYTES_PER_S.get(self.peaks.pcie_generation or 4, 32e9) * LINK_SHARE

    @property
    def link_bytes_per_s(self) -> float:
        """Rate between two cards in one direction: NVLink, else PCIe."""
        nvlink = self.peaks.nvlink_bytes_per_s
        return (nvlink / 2 * LINK_SHARE) if nvlink else self.host_bytes_per_s
