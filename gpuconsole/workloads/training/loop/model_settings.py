"""How knobs take effect on a model: precision, threads, memory format, attention, checkpointing, torch.compile."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.training import GRAPH_MODES
from gpuconsole.workloads.arithmetic import set_matmul_precision, set_threads
from gpuconsole.workloads.training.parallel.plan import unwrapped

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
DYNAMIC = {"auto": None, "true": True, "false": False}
"""Values of the knob `compile_dynamic`, as torch.compile takes them."""


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """The context for forward passes at `precision`."""
    if precision in AUTOCAST:
        return torch.autocast(device.type, dtype=AUTOCAST[precision])
    return contextlib.nullcontext()


def make_scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """Scales the loss so that small fp16 gradients do not become 0. At other precisions it does nothing."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def set_memory_format(model: torch.nn.Module, optimizer: torch.optim.Optimizer, channels_last: bool) -> None:
    """NHWC or NCHW for every convolution's weight and its optimizer state; the fused kernel pairs both in memory order."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)
            for name, value in optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor) and value.dim() == 4:
                    optimizer.state[parameter][name] = value.contiguous(memory_format=layout)


def apply_model_knobs(model: torch.nn.Module, knobs: Knobs) -> None:
    """Apply every knob that is a flag of the model or of torch."""
    set_matmul_precision(str(knobs["precision"]))
    set_threads(int(knobs["num_threads"]))
    if "cudnn_benchmark" in knobs:
        torch.backends.cudnn.benchmark = bool(knobs["cudnn_benchmark"])
    inner = unwrapped(model)
    for name in ("gradient_checkpointing", "attention"):
        if name in knobs:
            setattr(inner, name, knobs[name])


def check_compile(knobs: Knobs, device: torch.device) -> None:
    """Raise ValueError, one line, for CUDA graphs with gradient accumulation.

    A replay overwrites the gradients that the replay before it left (torch/_inductor/cudagraph_trees.py says so of tensors that outlive a
    replay; pytorch#169545). Several processes keep their gradients in buckets, so the combination works there.
    """
    mode, passes = str(knobs.get("torch_compile", "off")), int(knobs.get("gradient_accumulation_steps", 1))
    if device.type == "cuda" and mode in GRAPH_MODES and passes > 1 and knobs.get("sharding", "none") == "none":
        raise ValueError(
            f"torch_compile {mode} replays CUDA graphs, which lose the gradients of all but the last of {passes} passes; try default"
        )


def compiled(model: torch.nn.Module, knobs: Knobs) -> torch.nn.Module:
    """`model`, wrapped by torch.compile unless `torch_compile` is off. The first forward pass compiles it."""
    mode = str(knobs.get("torch_compile", "off"))
    if mode == "off":
        return model
    dynamic = DYNAMIC[str(knobs.get("compile_dynamic", "auto"))]
    result: torch.nn.Module = torch.compile(model, mode=mode, dynamic=dynamic)  # type: ignore[assignment]
    return result
