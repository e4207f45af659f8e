"""What computes: a GPU or a MIG slice of one, or the host CPU where there is none; and what links devices."""

from __future__ import annotations

import msgspec


class Peaks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dense datasheet peaks, FLOP/s by precision and bytes/s. None: not known, and then not guessed."""

    fp32_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    fp16_flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    source: str = ""


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """`id` is `gpu:0`, `gpu:1`, ... or `cpu`; a MIG slice is `gpu:0/mig:1`. A fact that is withheld stays empty.

    `facts` are further fixed properties by name, in words: architecture, compute capability, PCI address, NUMA node,
    CPU affinity, persistence mode, ...
    """

    id: str
    name: str
    memory_bytes: int = 0
    uuid: str = ""
    peaks: Peaks = Peaks()
    pcie: str = ""
    nvlink: str = ""
    facts: dict[str, str] = {}

    @property
    def is_gpu(self) -> bool:
        """A GPU, or a MIG slice of one."""
        return self.id.startswith("gpu")

    @property
    def is_mig(self) -> bool:
        return "/mig:" in self.id


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """The best path between devices `a` and `b`, in nvidia-smi's words: `NV#` (that many NVLinks), `PIX` (one PCIe
    switch), `PXB` (several), `PHB` (a host bridge), `NODE` (within a NUMA node), `SYS` (between NUMA nodes)."""

    a: str
    b: str
    path: str
