"""What this device reaches, measured: dense matrix products and a memory copy. The second yardstick beside datasheets."""

from __future__ import annotations

import torch

from gpuconsole.workloads.clock import now


def gemm_flops_per_s(device: torch.device, precision: str, budget_s: float = 0.25) -> float:
    """Best FLOP/s of a square matrix product in `precision` (fp32, tf32, bf16) within `budget_s`, random data."""
    side = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        a = torch.randn(side, side, device=device).to(dtype)
        b = torch.randn(side, side, device=device).to(dtype)
    return 2.0 * side**3 / _best_s(lambda: a @ b, device, budget_s)


def copy_bytes_per_s(device: torch.device, budget_s: float = 0.25) -> float:
    """Best bytes/s, read plus written, of a copy within the device's memory."""
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * size / _best_s(lambda: target.copy_(source), device, budget_s)


def _best_s(work: object, device: torch.device, budget_s: float) -> float:
    assert callable(work)
    best = float("inf")
    work()
    deadline = now() + budget_s
    for attempt in range(200):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = now()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, now() - start)
        if attempt >= 2 and now() > deadline:
            break
    return best
