"""How each hot knob takes effect on a model and its optimizer, between two steps."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.training.parallel.plan import unwrapped

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """The context for forward passes at `precision`."""
    if precision in AUTOCAST:
        return torch.autocast(device.type, dtype=AUTOCAST[precision])
    return contextlib.nullcontext()


def make_scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """Scales the loss so that small fp16 gradients do not become 0; at other precisions it does nothing."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def set_matmul_precision(precision: str) -> None:
    """TF32 for fp32 matmuls and convolutions where the knob says tf32 and the device has it; a CPU ignores it."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"  # by default torch uses it for fp32 convolutions


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(num_threads: int) -> int:
    """Intra-op threads; 0 leaves one core to loader, console and neighbours. Returns the number in use."""
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes that torchrun started here
    threads = num_threads or max(1, (cores() - 1) // sharing)
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
    inner = unwrapped(model)
    for name in ("gradient_checkpointing", "attention"):
        if name in knobs:
            setattr(inner, name, knobs[name])
