"""Weights laid out for products with a few rows, which is what decoding does, on CPUs.

torch's own linear layer calls a BLAS whose product of two rows costs nearly twice that of one. oneDNN's packed layout reads the weights
once for up to four: measured here, 512 x 2048 in fp32 on one core of an AMD EPYC: 1, 2, 4, 8 and 32 rows in 65, 61, 60, 98 and 324 us,
against 62, 114, 183, 266 and 836.
"""

from __future__ import annotations

import torch
from torch import nn

ROWS = 8
"""The packed layout depends on how many rows are expected; any number works."""


class PackedLinear(nn.Module):
    """What `linear` computes, from a packed copy of its weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """oneDNN is there and takes this precision. The two operations are torch's own for frozen models (torch.compile), not documented."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available() or dtype not in (torch.float32, torch.bfloat16):
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@torch.no_grad()
def pack(module: nn.Module) -> None:
    """Replace every linear layer within `module`; it can decode from then on, and no longer be trained."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, PackedLinear(child))
        else:
            pack(child)
