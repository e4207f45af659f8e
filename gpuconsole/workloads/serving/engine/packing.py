"""Weights in a layout for products with few rows, as in decoding, on CPUs.

torch's linear layer calls a BLAS in which two rows take nearly twice the time of one row. oneDNN's packed layout reads the weights
once for up to four rows. Measured: 512 x 2048 in fp32 on one core of an AMD EPYC: 1, 2, 4, 8 and 32 rows in 65, 61, 60, 98 and 324 us,
against 62, 114, 183, 266 and 836.
"""

from __future__ import annotations

import torch
from torch import nn

ROWS = 8
"""Expected number of rows for the packed layout. The product works with any number of rows."""


class PackedLinear(nn.Module):
    """The same result as `linear`, from a packed copy of its weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN is available for this precision. The two operations are undocumented; torch uses them for frozen models (torch.compile)."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available() or dtype not in (torch.float32, torch.bfloat16):
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@torch.no_grad()
def pack(module: nn.Module) -> None:
    """Replace every linear layer in `module`. After that the module can decode but not train."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, PackedLinear(child))
        else:
            pack(child)
