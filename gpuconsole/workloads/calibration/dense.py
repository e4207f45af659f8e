"""What this device reaches, measured: dense arithmetic by kind, and a memory copy. The second yardstick beside datasheets.

The kind matters. On some CPUs torch's matrix product and its convolution come from different libraries with very different
ceilings (fp32 on a Zen CPU: MKL 105, oneDNN 190 GFLOP/s a core), so a workload is held against the kind it consists of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F

from gpuconsole.workloads.clock import now

Kind = Literal["matrix product", "3x3 convolution"]


def dense_flops_per_s(kind: Kind, device: torch.device, precision: str, budget_s: float = 0.25) -> float:
    """Best FLOP/s of `kind` in `precision` (fp32, tf32, bf16) within `budget_s`, on random data.

    torch's generators are left as they were.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []), torch.no_grad():
        if kind == "matrix product":
            side = 8192 if on_gpu else 1024
            a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
            return 2.0 * side**3 / _best_s(lambda: a @ b, device, budget_s)
        batch, channels, side = (256, 256, 56) if on_gpu else (8, 256, 16)
        x = torch.randn(batch, channels, side, side, device=device).to(dtype).contiguous(memory_format=torch.channels_last)
        weight = torch.randn(channels, channels, 3, 3, device=device).to(dtype).contiguous(memory_format=torch.channels_last)
        return 2.0 * batch * channels**2 * 9 * side**2 / _best_s(lambda: F.conv2d(x, weight, padding=1), device, budget_s)


def copy_bytes_per_s(device: torch.device, budget_s: float = 0.25) -> float:
    """Best bytes/s, read plus written, of a copy within the device's memory."""
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * size / _best_s(lambda: target.copy_(source), device, budget_s)


def _best_s(work: Callable[[], object], device: torch.device, budget_s: float) -> float:
    """The shortest of many repeats: what the device does when nobody disturbs it."""
    best = float("inf")
    work()
    deadline = now() + budget_s
    for attempt in range(200):
        _synchronize(device)
        start = now()
        work()
        _synchronize(device)
        best = min(best, now() - start)
        if attempt >= 2 and now() > deadline:
            break
    return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
