"""How knobs take effect: on a model (precision, threads, memory format, attention, checkpointing,
torch.compile, fp8), its optimizer and its learning rate; and which have no effect on the device,
each with the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from gpuconsole.model.knobs.catalogue import Knobs, Value
from gpuconsole.model.knobs.training import GRAPH_MODES
from gpuconsole.workloads import process
from gpuconsole.workloads.device import set_matmul_precision, set_threads
from gpuconsole.workloads.training.parallel.plan import Parameters, unwrapped

# --- how knobs take effect on a model -------------------------------------------------------------

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
DYNAMIC = {"auto": None, "true": True, "false": False}
"""Values of the knob `compile_dynamic`, as torch.compile takes them."""


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """The context for forward passes at `precision`."""
    if precision in AUTOCAST:
        return torch.autocast(device.type, dtype=AUTOCAST[precision])
    return contextlib.nullcontext()


def make_scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """Scales the loss so that small fp16 gradients do not become 0. At other precisions it does
    nothing."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def set_memory_format(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, channels_last: bool
) -> None:
    """NHWC or NCHW for every convolution's weight and its optimizer state; the fused kernel pairs
    both in memory order."""
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

    A replay overwrites the gradients that the replay before it left
    (torch/_inductor/cudagraph_trees.py says so of tensors that outlive a replay; pytorch#169545).
    Several processes keep their gradients in buckets, so the combination works there.
    """
    mode, passes = (
        str(knobs.get("torch_compile", "off")),
        int(knobs.get("gradient_accumulation_steps", 1)),
    )
    if (
        device.type == "cuda"
        and mode in GRAPH_MODES
        and passes > 1
        and knobs.get("sharding", "none") == "none"
    ):
        raise ValueError(
            f"torch_compile {mode} replays CUDA graphs, which lose the gradients of all but the"
            f" last of {passes} passes; try default"
        )


def compiled(model: torch.nn.Module, knobs: Knobs) -> torch.nn.Module:
    """`model`, wrapped by torch.compile unless `torch_compile` is off. The first forward pass
    compiles it."""
    mode = str(knobs.get("torch_compile", "off"))
    if mode == "off":
        return model
    dynamic = DYNAMIC[str(knobs.get("compile_dynamic", "auto"))]
    process.keep_measurements()
    result: torch.nn.Module = torch.compile(model, mode=mode, dynamic=dynamic)  # type: ignore[assignment]
    return result


# --- the optimizer of the knob `optim` ------------------------------------------------------------

LEARNING_RATE = 3e-4
MOMENTUM = 0.9
EIGHT_BIT = {"torchao": "torchao.optim", "bitsandbytes": "bitsandbytes.optim"}
"""Packages with an `AdamW8bit`, in the order of preference, and the module that holds it."""


def make_optimizer(parameters: Parameters, optim: str) -> torch.optim.Optimizer:
    """The optimizer `optim` over `parameters`."""
    if optim == "sgd":
        return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)
    if optim == "adamw_8bit":
        return _adamw_8bit(parameters)
    return torch.optim.AdamW(
        parameters, lr=LEARNING_RATE, foreach=optim == "adamw_foreach", fused=optim == "adamw_fused"
    )


def carry_state(before: torch.optim.Optimizer, after: torch.optim.Optimizer) -> None:
    """Copy the moments of one AdamW into another.

    Between AdamW, SGD and 8-bit states the moments differ in meaning, so they start again.
    """
    if not (type(before) is type(after) is torch.optim.AdamW):
        return
    own: list[dict[str, Any]] = [
        {name: group[name] for name in ("foreach", "fused")} for group in after.param_groups
    ]
    after.load_state_dict(before.state_dict())
    for group, flags in zip(after.param_groups, own, strict=True):
        group.update(flags)
    for parameter, values in after.state.items():
        # the fused kernel reads `step` on the device, the others on the host
        values["step"] = values["step"].to(parameter.device if own[0]["fused"] else "cpu")


def check_optimizer(optim: str) -> None:
    """Raise ValueError, one line that names the package to install, where `optim` is not available
    here."""
    if optim == "adamw_8bit" and not _eight_bit_package():
        raise ValueError(
            f"optim adamw_8bit needs one of {', '.join(EIGHT_BIT)}: pip install torchao"
        )


def _eight_bit_package() -> str:
    return next((name for name in EIGHT_BIT if find_spec(name) is not None), "")


def _adamw_8bit(parameters: Parameters) -> torch.optim.Optimizer:
    check_optimizer("adamw_8bit")
    package = importlib.import_module(EIGHT_BIT[_eight_bit_package()])
    optimizer: torch.optim.Optimizer = package.AdamW8bit(parameters, lr=LEARNING_RATE)
    return optimizer


# --- the learning rate over time ------------------------------------------------------------------

HORIZON = 1000
"""Optimizer steps from the end of the warm-up to the lowest rate. A run has no planned end here, so
the decay has a fixed length."""
FLOOR = 0.1
"""The lowest rate as a share of the highest (Hoffmann et al. 2022, appendix B: decay by 10x)."""


class Schedule:
    """torch's LambdaLR, counted in optimizer steps. `rebuild` continues the count with another
    optimizer or other knobs."""

    def __init__(self, optimizer: torch.optim.Optimizer, knobs: Knobs) -> None:
        self.steps = 0
        self.rebuild(optimizer, knobs)

    def rebuild(self, optimizer: torch.optim.Optimizer, knobs: Knobs) -> None:
        for group in optimizer.param_groups:
            group["initial_lr"] = LEARNING_RATE
            if isinstance(group["lr"], torch.Tensor):  # torchao's optimizers
                group["lr"].fill_(LEARNING_RATE)
            else:
                group["lr"] = LEARNING_RATE
        shape, warmup = str(knobs["lr_scheduler"]), int(knobs["warmup_steps"])
        self._scheduler = LambdaLR(
            optimizer, lambda step: factor(shape, warmup, step), last_epoch=self.steps - 1
        )

    def step(self) -> None:
        self._scheduler.step()
        self.steps += 1


def factor(shape: str, warmup: int, step: int) -> float:
    """The rate of the optimizer step `step` (from 0) as a share of the highest."""
    if step < warmup:
        return (step + 1) / warmup
    if shape == "constant":
        return 1.0
    done = min(1.0, (step - warmup) / HORIZON)
    left = 0.5 * (1 + math.cos(math.pi * done)) if shape == "cosine" else 1 - done
    return FLOOR + (1 - FLOOR) * left


# --- matrix products of the blocks in fp8, by torchao ---------------------------------------------

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
        return (
            "needs compute capability 8.9 (L4, RTX 4090, H100 or newer): this GPU has"
            f" {capability[0]}.{capability[1]}"
        )
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
    """`model` with its LAYERS in fp8. With `emulate` the products are those of fp8, computed in
    fp32 (for tests without such a GPU)."""
    torchao = import_module("torchao.float8")
    config = torchao.Float8LinearConfig(emulate=emulate)
    converted: nn.Module = torchao.convert_to_float8_training(
        model,
        config=config,
        module_filter_fn=lambda module, name: name.rpartition(".")[2] in LAYERS,
    )
    return converted


# --- knobs whose present value has no effect on the device, each with the reason in one line ------

TF32_SINCE = (8, 0)
"""Compute capability of the first GPUs with TF32 and bf16 tensor cores (Ampere)."""

ON_A_CPU: dict[str, tuple[tuple[Value, ...], str]] = {
    "precision": (("tf32",), "a CPU has no TF32: matrix products stay in fp32"),
    "torch_compile": (
        ("reduce-overhead",),
        "CUDA graphs need a GPU: the model is compiled, and launched as with default",
    ),
    "pin_memory": ((True,), "page-locked memory serves copies to a GPU"),
    "cudnn_benchmark": ((True,), "a CPU has no cuDNN"),
    "non_blocking": ((True,), "batches are already on the device: nothing is copied"),
    "h2d_stream": ((True,), "batches are already on the device: nothing is copied"),
    "pytorch_alloc_conf": (
        ("expandable_segments:True",),
        "it configures CUDA's allocator, which a CPU run does not use",
    ),
}


def without_effect(knobs: Knobs, device: torch.device) -> dict[str, str]:
    """The knobs whose present value has no effect on `device`, with the reason."""
    if device.type == "cuda":
        return _on_cuda(knobs, device)
    reasons = {
        name: why
        for name, (values, why) in ON_A_CPU.items()
        if name in knobs and knobs[name] in values
    }
    if knobs.get("memory_limit_mb"):
        reasons["memory_limit_mb"] = (
            "no CPU allocator enforces it: it is the limit that the memory rules compare with"
        )
    return reasons


def _on_cuda(knobs: Knobs, device: torch.device) -> dict[str, str]:
    reasons = {}
    capability = torch.cuda.get_device_capability(device)
    if knobs.get("precision") == "tf32" and capability < TF32_SINCE:
        reasons["precision"] = (
            f"TF32 needs compute capability 8.0, this GPU has {capability[0]}.{capability[1]}:"
            " matrix products stay in fp32"
        )
    if knobs.get("non_blocking") and not knobs.get("pin_memory"):
        reasons["non_blocking"] = (
            "batches are not in page-locked memory, so the host waits for each copy"
        )
    return reasons
