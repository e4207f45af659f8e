"""Devices: GPUs, MIG slices and the host CPU; and the links between devices."""

from __future__ import annotations

import msgspec


class Peaks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dense datasheet peaks in FLOP/s by precision, and in bytes/s. None: not known. Nothing is guessed.

    Where a device has two rates for 16 and 8 bits, the figures are those with accumulation in fp32. `memory_bytes` is the rounded
    size of the datasheet. NVLink bandwidth is the sum of both directions, as in datasheets. `tdp_w`: the highest board power, in W.
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
    tdp_w: float | None = None
    source: str = ""


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """A published training throughput: tokens/s per device, with the trained model.

    `parameters`: as the publisher states. `n_layer` and `d_model`: 0 where the publisher does not state them. `mfu_ratio`: the
    publisher's own MFU, None where there is none. `devices`: number of devices, 0 where the publisher does not state it.
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
    """`id` is `gpu:0`, `gpu:1`, ... or `cpu`; a MIG slice is `gpu:0/mig:1`. A field is empty where the driver does not report the value.

    `facts` are further fixed properties by name: architecture, compute capability, PCI address, NUMA node,
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
        """Whether the device is a GPU or a MIG slice."""
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
