"""Loads with a known effect: `python -m benchmarks.gpu_day.loads KIND [--seconds 8]`. Prints
`running` when it runs, at the end its figures as JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

GEMM = 8192
COPY_BYTES = 2 << 30
H2D_BYTES = 256 << 20
SPIN_CYCLES = 20_000_000
"""About 10 ms of one thread."""


def gemm() -> tuple[Callable[[], object], float, str]:
    """bf16, on random data: constant data takes less power and runs faster."""
    a = torch.randn(GEMM, GEMM, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(GEMM, GEMM, device="cuda", dtype=torch.bfloat16)
    return lambda: a @ b, 2.0 * GEMM**3, "FLOP/s"


def copy() -> tuple[Callable[[], object], float, str]:
    """A copy within the memory: each byte is read and written."""
    a = torch.empty(COPY_BYTES, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    return lambda: b.copy_(a), 2.0 * COPY_BYTES, "bytes/s"


def one_block() -> tuple[Callable[[], object], float, str]:
    """One thread on one multiprocessor: nvidia-smi shows 100 %."""
    return lambda: torch.cuda._sleep(SPIN_CYCLES), 1.0, "kernels/s"


def h2d() -> tuple[Callable[[], object], float, str]:
    """Pinned copies to the GPU."""
    a = torch.empty(H2D_BYTES, dtype=torch.uint8, pin_memory=True)
    b = torch.empty(H2D_BYTES, device="cuda", dtype=torch.uint8)
    return lambda: b.copy_(a, non_blocking=True), float(H2D_BYTES), "bytes/s"


KINDS = {"gemm": gemm, "copy": copy, "one_block": one_block, "h2d": h2d}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=8.0)
    args = parser.parse_args()
    once, amount, unit = KINDS[args.kind]()
    for _ in range(3):
        once()
    torch.cuda.synchronize()
    print("running", flush=True)
    begun, rounds, pending = time.monotonic(), 0, []
    while time.monotonic() - begun < args.seconds:
        once()
        rounds += 1
        pending.append(torch.cuda.Event())
        pending[-1].record()
        if len(pending) > 8:
            pending.pop(0).synchronize()
    torch.cuda.synchronize()
    print(json.dumps({"rate": rounds * amount / (time.monotonic() - begun), "unit": unit}))


if __name__ == "__main__":
    main()
