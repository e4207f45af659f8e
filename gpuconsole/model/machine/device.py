"""What computes: a GPU or a MIG slice of one, or the host CPU where there is none; and what links devices."""

from __future__ import annotations

import msgspec


class Peaks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dense datasheet peaks, FLOP/s by precision and bytes/s. None: not known, and then not guessed.

    Tensor-core figures of 16 and 8 bits accumulate in fp32 where a device has two rates. `memory_bytes` is the datasheet's
    size as it rounds it; NVLink counts both directions together, as datasheets do.
    """

    fp32_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    fp16_flops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    int8_ops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    memory_bytes: float | None = None
    nvlink_bytes_per_s: float | None = None
    pcie_generation: int | None = None
    source: str = ""


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """A training throughput that somebody published: tokens/s of each device, with what was trained.

    `parameters` as the publisher names the model; `n_layer` and `d_model` 0 where its shape is not told. `mfu_ratio` is
    the publisher's own, None where there is none. `devices`: how many took part, 0 where it is not told.
    """

    device: str
    model: str
    parameters: float
    seq_len: int
    precision: str
    tokens_per_s: float
    source: str
    n_layer: int = 0
    d_model: int = 0
    devices: int = 0
    mfu_ratio: float | None = None
    note: str = ""


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
