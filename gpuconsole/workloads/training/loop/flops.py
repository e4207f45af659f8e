"""Model FLOPs, counted by torch on the meta device: no data, no time, and no operator missed.

On CPU tensors torch's counter misses scaled dot product attention (its CPU kernel is not in the registry); on the meta
device SDPA decomposes and the count equals 6 N + 12 L d T a token (PaLM, appendix B) exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode


def count_training_flops(model: torch.nn.Module, loss: Callable[[torch.nn.Module], torch.Tensor]) -> float:
    """FLOPs of `loss(model on meta).backward()`, a multiply-add counting as two."""
    twin = copy.deepcopy(model).to("meta")
    counter = FlopCounterMode(display=False)
    with counter:
        loss(twin).backward()
    return float(counter.get_total_flops())
