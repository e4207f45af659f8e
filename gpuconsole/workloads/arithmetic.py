"""Dense arithmetic as every workload sets it up: kinds, number types, matrix precision and threads."""

from __future__ import annotations

import os
from typing import Literal

import torch

Kind = Literal["matrix product", "3x3 convolution"]
"""The dense arithmetic that a workload mostly consists of. Its speed is compared with the device's speed at the same kind."""
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The number type of the operands at each value of the knob `precision`."""


def set_matmul_precision(precision: str) -> None:
    """Use TF32 for fp32 matrix products and convolutions where `precision` is tf32 and the device has it. A CPU ignores the setting."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"  # torch uses it for fp32 convolutions by default


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(num_threads: int) -> int:
    """Set the number of threads within an operator; 0 leaves one core to loader, console and other processes. Returns the number in use."""
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes that torchrun started on this machine
    threads = num_threads or max(1, (cores() - 1) // sharing)
    torch.set_num_threads(threads)
    return threads
