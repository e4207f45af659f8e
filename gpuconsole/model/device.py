"""What computes: a GPU, or the host CPU where there is none."""

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
    """`id` is `gpu:0`, `gpu:1`, ... or `cpu`."""

    id: str
    name: str
    memory_bytes: int = 0
    uuid: str = ""
    peaks: Peaks = Peaks()
    pcie: str = ""
    nvlink: str = ""

    @property
    def is_gpu(self) -> bool:
        return self.id.startswith("gpu")
