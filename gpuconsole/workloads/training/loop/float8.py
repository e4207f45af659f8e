"""Matrix products of the blocks in fp8, by torchao: inputs, weights and gradients are scaled to fp8 for each product; weights stay fp32."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs

FP8_SINCE = (8, 9)
"""Compute capability of the first GPUs with fp8 tensor cores (Ada; then Hopper and Blackwell)."""
LAYERS = ("qkv", "proj", "up", "down")
"""The Linear layers of a block. The head stays in 16 bits, as in torchtitan's recipe."""


def check_float8(knobs: Knobs, device: torch.device) -> None:
    """Raise ValueError, one line, where `float8_linear` is not possible."""
    if not knobs.get("float8_linear"):
        return
    why = _missing(knobs, device)
    if why:
        raise ValueError(f"float8_linear {why}")


def _missing(knobs: Knobs, device: torch.device) -> str:
    if device.type != "cuda":
        return "needs a GPU with fp8 tensor cores (L4, RTX 4090, H100 or newer): a CPU has none"
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_SINCE:
        return f"needs compute capability 8.9 (L4, RTX 4090, H100 or newer): this GPU has {capability[0]}.{capability[1]}"
    if knobs["precision"] != "bf16":
        return f"needs precision bf16, not {knobs['precision']}"
    if (
        knobs.get("peft", "none") != "none"
        or int(knobs.get("tensor_parallel", 1)) > 1
        or knobs.get("sharding", "none") not in ("none", "ddp")
    ):
        return "runs with sharding none or ddp, without tensor_parallel and peft"
    if find_spec("torchao") is None:
        return "needs torchao: pip install torchao"
    return ""


def in_float8(model: nn.Module, emulate: bool = False) -> nn.Module:
    """`model` with its LAYERS in fp8. With `emulate` the products are those of fp8, computed in fp32 (for tests without such a GPU)."""
    torchao = import_module("torchao.float8")
    config = torchao.Float8LinearConfig(emulate=emulate)
    converted: nn.Module = torchao.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda module, name: name.rpartition(".")[2] in LAYERS
    )
    return converted
