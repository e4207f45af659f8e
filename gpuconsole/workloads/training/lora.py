"""Low-rank adaptation (Hu et al. 2021): the weights stay as they are, and a product of two thin matrices beside them is trained."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

TARGETS = ("qkv", "proj", "up", "down")
SCALE = 2.0
"""alpha / r. Hugging Face peft's documentation trains with alpha = 2 r."""


class LoRALinear(nn.Module):
    """A frozen Linear and its adapter: W x + b + scale B A x. B begins at 0, so training begins where the frozen model stood."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        weight = frozen.weight
        self.down = nn.Linear(frozen.in_features, rank, bias=False, device=weight.device, dtype=weight.dtype)
        self.up = nn.Linear(rank, frozen.out_features, bias=False, device=weight.device, dtype=weight.dtype)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.frozen.weight, self.frozen.bias) + SCALE * self.up(self.down(x))


def add_lora(model: nn.Module, rank: int, targets: tuple[str, ...] = TARGETS) -> None:
    """Freeze `model` and put an adapter beside each Linear with one of those names."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, rank))
