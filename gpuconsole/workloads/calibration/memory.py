"""Copies within the device's memory, and between it and the host."""

from __future__ import annotations

from typing import Literal

import torch

from gpuconsole.model.machine.calibration import Reached
from gpuconsole.workloads.calibration.repeats import as_rate, repeats_s, where_it_fits

ON_GPU_BYTES = 2**30
ON_CPU_BYTES = 2**28
"""A copy touches twice as much: more than the last-level cache of one socket."""
IN_WORKER_BYTES = 2**26
TRANSFER_BYTES = 2**28


def copy(device: torch.device, budget_s: float, threads: int) -> Reached:
    """Bytes/s, read plus written, of a copy within the device's memory."""
    size = ON_GPU_BYTES if device.type == "cuda" else ON_CPU_BYTES
    source = _random(size, device)
    target = torch.empty_like(source)
    times = repeats_s(lambda: target.copy_(source), device, budget_s)
    by = "" if device.type == "cuda" else f", {threads_text(threads)}"
    return as_rate("copy_bytes_per_s", 2.0 * size, times, f"read plus written, {size >> 20} MiB{by}")


def triad(device: torch.device, budget_s: float, threads: int) -> Reached:
    """Bytes/s, read plus written, of a = b + s c (McCalpin's triad): two reads and one write.

    A write to memory often reads the old content first. So the triad reaches more counted bytes/s than a copy, as other work with few writes does.
    """
    size = ON_GPU_BYTES if device.type == "cuda" else ON_CPU_BYTES // 2
    b, c = _random(size, device).view(torch.float32), _random(size, device).view(torch.float32)
    a = torch.empty_like(b)
    times = repeats_s(lambda: torch.add(b, c, alpha=0.5, out=a), device, budget_s)
    by = "" if device.type == "cuda" else f", {threads_text(threads)}"
    return as_rate("triad_bytes_per_s", 3.0 * size, times, f"two reads, one write, {size >> 20} MiB each{by}")


def best_copy_bytes_per_s(device: torch.device, budget_s: float = 0.25) -> float:
    """The best copy within `budget_s`: the reference for a workload that moves memory. The state of torch's random generators stays as it was.

    On a CPU the buffers are smaller than those of `copy`, because the peak resident set of a process cannot be reset.
    """
    on_gpu = device.type == "cuda"

    def measure(divisor: int) -> float:
        size = ON_GPU_BYTES // divisor if on_gpu else IN_WORKER_BYTES
        source = _random(size, device)
        target = torch.empty_like(source)
        return 2.0 * size / min(repeats_s(lambda: target.copy_(source), device, budget_s))

    with torch.random.fork_rng(devices=[device] if on_gpu else []), torch.no_grad():
        return where_it_fits(measure) if on_gpu else measure(1)


def transfer(name: str, direction: Literal["h2d", "d2h"], pinned: bool, device: torch.device, budget_s: float) -> Reached:
    """Bytes/s of a copy between host and GPU."""
    host = torch.empty(TRANSFER_BYTES, dtype=torch.uint8, pin_memory=pinned)
    host.random_(0, 256)
    there = _random(TRANSFER_BYTES, device)
    source, target = (host, there) if direction == "h2d" else (there, host)
    times = repeats_s(lambda: target.copy_(source, non_blocking=pinned), device, budget_s)
    return as_rate(name, float(TRANSFER_BYTES), times, f"{TRANSFER_BYTES >> 20} MiB, {'pinned' if pinned else 'pageable'} host memory")


def threads_text(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _random(size: int, device: torch.device) -> torch.Tensor:
    return torch.rand(size // 4, device=device).view(torch.uint8)
