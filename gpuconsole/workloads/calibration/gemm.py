"""Square matrix products only: the speed that the device's arithmetic reaches. A sample is one
product."""

from __future__ import annotations

import torch
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device import DTYPES, Kind

STEP_FLOPS = {"cpu": 1e10, "cuda": 2e14}
"""FLOPs of a step: a tenth of a second of one core, a quarter of a second of a large GPU."""
MAX_PRODUCTS = 512


class Products:
    """Products of random matrices. On zeros a GPU draws less power and reaches a clock that no job
    reaches."""

    dense_kind: Kind = "matrix product"

    def __init__(self, knobs: Knobs, device: torch.device, seed: int) -> None:
        self.model = nn.Identity()
        self._side = int(knobs["matrix_size"])
        self._per_step = max(
            1, min(MAX_PRODUCTS, round(STEP_FLOPS[device.type] / self.flops_per_sample(knobs)))
        )
        random = torch.Generator(device).manual_seed(seed)
        self._wide = [
            torch.randn(self._side, self._side, device=device, generator=random) for _ in range(2)
        ]
        self._precision, self._factors = "", self._wide

    def do(self, knobs: Knobs) -> int:
        precision = str(knobs["precision"])
        if precision != self._precision:
            self._precision, self._factors = (
                precision,
                [factor.to(DTYPES[precision]) for factor in self._wide],
            )
        a, b = self._factors
        for _ in range(self._per_step):
            a @ b
        return self._per_step

    def flops_per_sample(self, knobs: Knobs) -> float:
        return 2.0 * int(knobs["matrix_size"]) ** 3

    def facts(self, knobs: Knobs) -> dict[str, float]:
        """No facts beside the arithmetic."""
        return {}


def create_work(knobs: Knobs, device: torch.device, seed: int) -> Products:
    return Products(knobs, device, seed)
