"""A stream through memory: a = b + s c over buffers larger than any cache (McCalpin's triad). A
sample is one pass over the buffers."""

from __future__ import annotations

import torch
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device import Kind

MB = 2**20
BUFFERS = 3
"""Two buffers are read, one is written."""
STEP_BYTES = {"cpu": 1e9, "cuda": 5e11}
"""Bytes of a step: some tens of milliseconds of a core, a tenth of a second of a large GPU."""
MAX_PASSES = 512


class Triad:
    dense_kind: Kind = "matrix product"

    def __init__(self, knobs: Knobs, device: torch.device, seed: int) -> None:
        self.model = nn.Identity()
        values = max(1, int(float(knobs["buffer_mb"]) * MB) // 4)
        random = torch.Generator(device).manual_seed(seed)
        self._b, self._c = (torch.rand(values, device=device, generator=random) for _ in range(2))
        self._a = torch.empty_like(self._b)
        self._bytes = float(BUFFERS * 4 * values)
        self._per_step = max(1, min(MAX_PASSES, round(STEP_BYTES[device.type] / self._bytes)))

    def do(self, knobs: Knobs) -> int:
        for _ in range(self._per_step):
            torch.add(self._b, self._c, alpha=0.5, out=self._a)
        return self._per_step

    def flops_per_sample(self, knobs: Knobs) -> float:
        """There are no matrix products, and only those are compared with the peak."""
        return 0.0

    def facts(self, knobs: Knobs) -> dict[str, float]:
        return {"bytes_per_sample": self._bytes}


def create_work(knobs: Knobs, device: torch.device, seed: int) -> Triad:
    return Triad(knobs, device, seed)
