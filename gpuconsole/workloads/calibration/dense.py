"""What this device reaches in dense arithmetic, by kind and precision: the second reference beside datasheets.

The kind matters. On some CPUs torch's matrix product and its convolution come from different libraries with very different ceilings
(fp32 on a Zen CPU: MKL 105, oneDNN 190 GFLOP/s a core). So a workload is compared with the kind that it consists of.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from gpuconsole.workloads.arithmetic import DTYPES, Kind
from gpuconsole.workloads.calibration.repeats import once_s, repeats_s, where_it_fits

TENSOR_CORES_SINCE = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0)}
"""The first compute capability with units for that precision (CUDA programming guide, "Arithmetic Instructions" and "Tensor Cores")."""
SMALLEST_SIDE, LARGEST_SIDE = 256, 8192


def dense_flops_per_s(kind: Kind, device: torch.device, precision: str, budget_s: float = 0.25) -> float:
    """Best FLOP/s of `kind` in `precision` (fp32, tf32, bf16, fp16) within `budget_s`, on random data. On a GPU with little free memory the
    product or the batch is smaller, and so is the figure.

    The state of torch's random generators stays as it was.
    """
    on_gpu = device.type == "cuda"
    side = 8192 if on_gpu else 256 if precision == "fp16" else 1024  # emulated fp16 takes seconds for the larger one

    def measure(divisor: int) -> float:
        flops, work = product(device, precision, side // divisor) if kind == "matrix product" else convolution(device, precision, divisor)
        return flops / min(repeats_s(work, device, budget_s))

    with torch.random.fork_rng(devices=[device] if on_gpu else []), torch.no_grad():
        return where_it_fits(measure) if on_gpu else measure(1)


def product(device: torch.device, precision: str, side: int) -> tuple[float, Callable[[], object]]:
    """FLOPs of one square matrix product, and the work itself."""
    a, b = (torch.randn(side, side, device=device).to(DTYPES[precision]) for _ in range(2))
    return 2.0 * side**3, lambda: a @ b


def convolution(device: torch.device, precision: str, divisor: int = 1) -> tuple[float, Callable[[], object]]:
    """FLOPs of one 3x3 convolution in NHWC, and the work itself; the batch is divided by `divisor`."""
    batch, channels, side = (256 // divisor, 256, 56) if device.type == "cuda" else (8, 256, 16)
    x = torch.randn(batch, channels, side, side, device=device).to(DTYPES[precision]).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(channels, channels, 3, 3, device=device).to(DTYPES[precision]).contiguous(memory_format=torch.channels_last)
    return 2.0 * batch * channels**2 * 9 * side**2, lambda: F.conv2d(x, weight, padding=1)


def fitting_side(device: torch.device, precision: str, budget_s: float) -> int:
    """The largest side, in doublings, whose product is short compared with `budget_s`.

    Emulated arithmetic can be 50 times slower than native arithmetic, and a GPU 1000 times faster than a core: no single size suits all.
    """
    side = SMALLEST_SIDE
    while side < LARGEST_SIDE:
        _, work = product(device, precision, side)
        work()
        if 8 * once_s(work, device) > budget_s / 16:  # twice the side is eight times the work
            break
        side *= 2
    return side


def not_native(device: torch.device, precision: str) -> str:
    """Why `precision` cannot be measured on `device`; empty where it can.

    Emulation on a CPU is measured too, because its low speed is of interest.
    """
    if device.type != "cuda":
        return "TF32 is an arithmetic of GPUs" if precision == "tf32" else ""
    has, needs = torch.cuda.get_device_capability(device), TENSOR_CORES_SINCE.get(precision, (0, 0))
    if has >= needs:
        return ""
    return f"compute capability {has[0]}.{has[1]}; {precision} needs {needs[0]}.{needs[1]}"
