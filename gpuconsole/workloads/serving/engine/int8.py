"""Linear layers with int8 weights for GPUs: one scale for each row of the weights, activations in the precision of the model.

A product of one row reads each weight once, as int8: torch.compile makes one kernel of conversion, product and sum. For more rows the weights
are first converted to the precision of the activations, which moves more bytes than a product without quantization. So int8 is faster for one
user, and slower for a large batch. torch's own `quantize_dynamic` (see weights.py) exists for CPUs only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

LARGEST = 127
LEAST_SCALE = 1e-8
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Int8Linear(nn.Module):
    """Nearly the same result as `linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = (weight.abs().amax(1, keepdim=True).float() / LARGEST).clamp(min=LEAST_SCALE)
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale[:, 0].to(weight.dtype))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self.weight: torch.Tensor
        self.scale: torch.Tensor
        self.bias: torch.Tensor | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., columns) to (..., rows)."""
        if x.numel() == x.shape[-1]:
            product = compiled_product() if x.is_cuda else one_row
            y = product(x.reshape(-1), self.weight, self.scale).view(*x.shape[:-1], -1)
        else:
            y = F.linear(x, self.weight.to(x.dtype)) * self.scale
        return y if self.bias is None else y + self.bias


def one_row(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """(columns,) and (rows, columns) int8 to (rows,). The sum is fp32."""
    return ((weight * x.float()).sum(1) * scale).to(x.dtype)


@cache
def compiled_product() -> Product:
    """`one_row` as one kernel for each shape."""
    product: Product = torch.compile(one_row, dynamic=False)
    return product


@torch.no_grad()
def quantize(module: nn.Module) -> None:
    """Replace every linear layer in `module`, one after the other, so that one matrix at most exists twice. After that the module cannot train."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child))
        else:
            quantize(child)


@torch.inference_mode()
def warm_up(module: nn.Module, dtype: torch.dtype) -> None:
    """Compile the product of one row for each shape. Takes some seconds on a GPU. Raises ValueError where torch cannot compile for this GPU."""
    from torch.utils._triton import has_triton

    layers = {tuple(one.weight.shape): one for one in module.modules() if isinstance(one, Int8Linear)}
    if any(one.weight.is_cuda for one in layers.values()) and not has_triton():
        raise ValueError("quantization int8 on a GPU needs torch.compile, and this torch has no Triton for the GPU")
    for layer in layers.values():
        layer(torch.zeros(1, layer.weight.shape[1], device=layer.weight.device, dtype=dtype))
