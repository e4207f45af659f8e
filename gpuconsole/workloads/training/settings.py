"""How each hot knob takes effect on a model and its optimizer, between two steps."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from gpuconsole.model.knobs import Knobs

LEARNING_RATE = 3e-4


def make_optimizer(model: torch.nn.Module, optim: str, state: dict[str, Any] | None = None) -> torch.optim.Optimizer:
    """AdamW as `optim` says, carrying on from `state` where given."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=optim == "adamw_foreach", fused=optim == "adamw_fused")
    if state is not None:
        own = [{name: group[name] for name in ("foreach", "fused")} for group in optimizer.param_groups]
        optimizer.load_state_dict(state)
        for group, flags in zip(optimizer.param_groups, own, strict=True):
            group.update(flags)
        for parameter, values in optimizer.state.items():
            # the fused kernel reads `step` on the device, the others on the host
            values["step"] = values["step"].to(parameter.device if optim == "adamw_fused" else "cpu")
    return optimizer


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """The context for forward passes at `precision`."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def set_matmul_precision(precision: str) -> None:
    """TF32 for fp32 matmuls and convolutions where the knob says tf32 and the device has it; a CPU ignores it."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"  # by default torch uses it for fp32 convolutions


def set_threads(num_threads: int) -> int:
    """Intra-op threads; 0 leaves one core to loader, console and neighbours. Returns the number in use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = num_threads or max(1, cores - 1)
    torch.set_num_threads(threads)
    return threads


def set_memory_format(model: torch.nn.Module, optimizer: torch.optim.Optimizer, channels_last: bool) -> None:
    """NHWC or NCHW for every convolution's weight and its optimizer state, which the fused kernel pairs in memory order."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)
            for name, value in optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor) and value.dim() == 4:
                    optimizer.state[parameter][name] = value.contiguous(memory_format=layout)


def apply_model_knobs(model: torch.nn.Module, knobs: Knobs) -> None:
    """Everything that is a flag on the model or on torch."""
    set_matmul_precision(str(knobs["precision"]))
    set_threads(int(knobs["num_threads"]))
    inner = getattr(model, "_orig_mod", model)
    if "gradient_checkpointing" in knobs:
        inner.gradient_checkpointing = bool(knobs["gradient_checkpointing"])
