"""Weights of linear layers for products with few rows, as in decoding: a packed layout for CPUs,
and the rates of reading weights and of computing.

torch's linear layer calls a BLAS in which two rows take nearly twice the time of one row. oneDNN's
packed layout reads the weights once for up to four rows. Measured: 512 x 2048 in fp32 on one core
of an AMD EPYC: 1, 2, 4, 8 and 32 rows in 65, 61, 60, 98 and 324 us, against 62, 114, 183, 266 and
836.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import nn

from gpuconsole.workloads.calibration.measures import repeats_s

# --- the packed layout ----------------------------------------------------------------------------

ROWS = 8
"""Expected number of rows for the packed layout. The product works with any number of rows."""


class PackedLinear(nn.Module):
    """The same result as `linear`, from a packed copy of its weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self._bias, "none", [], ""
        )
        return y


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN is available for this precision. The two operations are undocumented; torch
    uses them for frozen models (torch.compile)."""
    if (
        device.type != "cpu"
        or not torch.backends.mkldnn.is_available()
        or dtype not in (torch.float32, torch.bfloat16)
    ):
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )


@torch.no_grad()
def pack(module: nn.Module) -> None:
    """Replace every linear layer in `module`. After that the module can decode but not train."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, PackedLinear(child))
        else:
            pack(child)


# --- the rate of reading weights, which limits the decoding of one token at a time ----------------

BEYOND_CACHES_BYTES = 2**27
WIDTH = {"cpu": 1024, "cuda": 4096}
"""The width of the layers in a calibration. A wide layer is a smaller share of launch time on a
GPU."""
LARGEST = ((1, 4),)
BLOCK = ((1, 3), (1, 1), (1, 4), (4, 1))
"""Inputs and outputs of layers, as multiples of the width. BLOCK: the four matrices of a
transformer block; small ones are read more slowly."""
READINGS = 30
"""Number of products per measurement on a GPU, because a single product takes about as long as its
launch and synchronisation."""


def reading(
    width: int,
    device: torch.device,
    dtype: torch.dtype,
    shapes: Sequence[tuple[int, int]] = LARGEST,
) -> tuple[float, Callable[[], object], nn.ModuleList]:
    """Bytes of weights that one piece of work reads, the work, and the layers.

    Linear layers of `shapes`, one after another, more than fit into caches, in the layout that the
    embedded server uses.
    """
    each = sum(rows * columns for rows, columns in shapes) * width * width
    count = max(2, BEYOND_CACHES_BYTES // (each * dtype.itemsize))
    layers = nn.ModuleList(
        nn.Linear(rows * width, columns * width, bias=False, device=device, dtype=dtype)
        for _ in range(count)
        for rows, columns in shapes
    )
    if can_pack(device, dtype):
        pack(layers)
    inputs = [
        torch.randn(1, rows * width, device=device).to(dtype)
        for _ in range(count)
        for rows, _ in shapes
    ]
    times = READINGS if device.type == "cuda" else 1

    def work() -> object:
        return [layer(row) for _ in range(times) for layer, row in zip(layers, inputs, strict=True)]

    return float(times * count * each * dtype.itemsize), work, layers


# --- reference rates of a served model ------------------------------------------------------------

PROMPT_ROWS = 512
BUDGET_S = 0.25


@torch.inference_mode()
def reference_rates(d_model: int, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """`peak_bytes_per_s`: rate of reading weights for one row. `peak_flops_per_s`: rate of products
    with many rows.

    Measured with linear layers of the model's kind and largest shape, one after another, more
    layers than fit into caches. For one CPU thread the rate is well below that of a copy, and lower
    for smaller layers. The figures are medians, like the figures of a run. The state of torch's
    random generators is unchanged.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        moved, work, layers = reading(d_model, device, dtype)
        many = torch.randn(PROMPT_ROWS, d_model, device=device).to(dtype)
        read_s = median(repeats_s(work, device, BUDGET_S))
        computing = median(repeats_s(lambda: layers[0](many), device, BUDGET_S))
    return {
        "peak_bytes_per_s": moved / read_s,
        "peak_flops_per_s": 2.0 * PROMPT_ROWS * 4 * d_model * d_model / computing,
    }
