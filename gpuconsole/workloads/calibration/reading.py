"""The rate at which one row of activations reads the weights of linear layers: the limit of decoding one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from gpuconsole.workloads.serving.engine.packing import can_pack, pack

BEYOND_CACHES_BYTES = 2**27
WIDTH = {"cpu": 1024, "cuda": 4096}
"""The width of the layers in a calibration. A wide layer is a smaller share of launch time on a GPU."""
LARGEST = ((1, 4),)
BLOCK = ((1, 3), (1, 1), (1, 4), (4, 1))
"""Inputs and outputs of layers, as multiples of the width. BLOCK: the four matrices of a transformer block; small ones are read more slowly."""
READINGS = 30
"""Number of products per measurement on a GPU, because a single product takes about as long as its launch and synchronisation."""


def reading(
    width: int, device: torch.device, dtype: torch.dtype, shapes: Sequence[tuple[int, int]] = LARGEST
) -> tuple[float, Callable[[], object], nn.ModuleList]:
    """Bytes of weights that one piece of work reads, the work, and the layers.

    Linear layers of `shapes`, one after another, more than fit into caches, in the layout that the embedded server uses.
    """
    each = sum(rows * columns for rows, columns in shapes) * width * width
    count = max(2, BEYOND_CACHES_BYTES // (each * dtype.itemsize))
    layers = nn.ModuleList(
        nn.Linear(rows * width, columns * width, bias=False, device=device, dtype=dtype) for _ in range(count) for rows, columns in shapes
    )
    if can_pack(device, dtype):
        pack(layers)
    inputs = [torch.randn(1, rows * width, device=device).to(dtype) for _ in range(count) for rows, _ in shapes]
    times = READINGS if device.type == "cuda" else 1

    def work() -> object:
        return [layer(row) for _ in range(times) for layer, row in zip(layers, inputs, strict=True)]

    return float(times * count * each * dtype.itemsize), work, layers
