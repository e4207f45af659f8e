"""What this device reaches: repeated timing of a piece of work; dense arithmetic by kind and
precision; copies within the memory of the device, between the device and the host, and to and from
the disk without the page cache.

The kind of arithmetic matters. On some CPUs torch's matrix product and its convolution come from
different libraries with very different ceilings (fp32 on a Zen CPU: MKL 105, oneDNN 190 GFLOP/s a
core). So a workload is compared with the kind that it consists of.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import psutil
import torch
import torch.nn.functional as F

from gpuconsole.agent.clock import ThreadTimes, now
from gpuconsole.model.machine import Reached, unit_of
from gpuconsole.workloads.device import DTYPES, Kind

# --- repeated timing ------------------------------------------------------------------------------

MIN_REPEATS = 3
MAX_REPEATS = 200
"""Limits of the number of repeats, whatever the budget."""


def repeats_s(work: Callable[[], object], device: torch.device, budget_s: float) -> list[float]:
    """Seconds of each repeat of `work` within `budget_s`, after a first repeat that does not
    count."""
    work()
    times: list[float] = []
    deadline = now() + budget_s
    while len(times) < MIN_REPEATS or (len(times) < MAX_REPEATS and now() < deadline):
        times.append(once_s(work, device))
    return times


def once_s(work: Callable[[], object], device: torch.device) -> float:
    """Seconds from an idle device to an idle device. On a CPU without the time in which this thread
    waited for a core: otherwise the reference would depend on other processes."""
    synchronize(device)
    start = now()
    delay = _own_times().runq_s() if device.type == "cpu" else 0.0
    work()
    synchronize(device)
    if device.type != "cpu":
        return now() - start
    # inside the times of the clock: a wait beside the work is no part of the difference
    delay = _own_times().runq_s() - delay
    return max(now() - start - delay, 1e-9)


@cache
def _own_times() -> ThreadTimes:
    """The times of the measuring thread; a process has one such thread."""
    return ThreadTimes()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def as_rate(name: str, amount: float, times: list[float], detail: str) -> Reached:
    """`amount` per second."""
    low = statistics.quantiles(times, n=4, method="inclusive")[0] if len(times) > 1 else times[0]
    best, median = amount / min(times), amount / statistics.median(times)
    return Reached(
        name,
        unit_of(name),
        best,
        median,
        _spread(times),
        len(times),
        detail,
        sustained=amount / low,
    )


def as_time(name: str, times: list[float], detail: str) -> Reached:
    return Reached(
        name,
        unit_of(name),
        min(times),
        statistics.median(times),
        _spread(times),
        len(times),
        detail,
    )


def missing(name: str, reason: str) -> Reached:
    return Reached(name, unit_of(name), reason=reason)


def _spread(times: list[float]) -> float | None:
    if len(times) < 2:
        return None
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / middle


def where_it_fits(measure: Callable[[int], float]) -> float:
    """What `measure` returns at the first divisor of its size, 1, 2, 4 or 8, for which the device
    has memory: beside a workload little may be free. Raises torch.OutOfMemoryError if the last one
    does not fit either."""
    for divisor in (1, 2, 4):
        with contextlib.suppress(torch.OutOfMemoryError):
            return measure(divisor)
        torch.cuda.empty_cache()
    return measure(8)


# --- dense arithmetic -----------------------------------------------------------------------------

TENSOR_CORES_SINCE = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0)}
"""The first compute capability with units for that precision (CUDA programming guide, "Arithmetic
Instructions" and "Tensor Cores")."""
MIN_SIDE = 256
MAX_SIDE = 8192


def dense_flops_per_s(
    kind: Kind, device: torch.device, precision: str, budget_s: float = 0.25
) -> float:
    """Best FLOP/s of `kind` in `precision` (fp32, tf32, bf16, fp16) within `budget_s`, on random
    data. On a GPU with little free memory the product or the batch is smaller, and so is the
    figure.

    The state of torch's random generators stays as it was.
    """
    on_gpu = device.type == "cuda"
    # emulated fp16 takes seconds for the larger one
    side = 8192 if on_gpu else 256 if precision == "fp16" else 1024

    def measure(divisor: int) -> float:
        flops, work = (
            product(device, precision, side // divisor)
            if kind == "matrix product"
            else convolution(device, precision, divisor)
        )
        return flops / min(repeats_s(work, device, budget_s))

    with torch.random.fork_rng(devices=[device] if on_gpu else []), torch.no_grad():
        return where_it_fits(measure) if on_gpu else measure(1)


def product(device: torch.device, precision: str, side: int) -> tuple[float, Callable[[], object]]:
    """FLOPs of one square matrix product, and the work itself."""
    a, b = (torch.randn(side, side, device=device).to(DTYPES[precision]) for _ in range(2))
    return 2.0 * side**3, lambda: a @ b


def convolution(
    device: torch.device, precision: str, divisor: int = 1
) -> tuple[float, Callable[[], object]]:
    """FLOPs of one 3x3 convolution in NHWC, and the work itself; the batch is divided by
    `divisor`."""
    batch, channels, side = (256 // divisor, 256, 56) if device.type == "cuda" else (8, 256, 16)
    x = (
        torch.randn(batch, channels, side, side, device=device)
        .to(DTYPES[precision])
        .contiguous(memory_format=torch.channels_last)
    )
    weight = (
        torch.randn(channels, channels, 3, 3, device=device)
        .to(DTYPES[precision])
        .contiguous(memory_format=torch.channels_last)
    )
    return 2.0 * batch * channels**2 * 9 * side**2, lambda: F.conv2d(x, weight, padding=1)


def fitting_side(device: torch.device, precision: str, budget_s: float) -> int:
    """The largest side, in doublings, whose product is short compared with `budget_s`.

    Emulated arithmetic can be 50 times slower than native arithmetic, and a GPU 1000 times faster
    than a core: no single size suits all.
    """
    side = MIN_SIDE
    while side < MAX_SIDE:
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


# --- copies within the device's memory, and between it and the host -------------------------------

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
    return as_rate(
        "copy_bytes_per_s", 2.0 * size, times, f"read plus written, {size >> 20} MiB{by}"
    )


def triad(device: torch.device, budget_s: float, threads: int) -> Reached:
    """Bytes/s, read plus written, of a = b + s c (McCalpin's triad): two reads and one write.

    A write to memory often reads the old content first. So the triad reaches more counted bytes/s
    than a copy, as other work with few writes does.
    """
    size = ON_GPU_BYTES if device.type == "cuda" else ON_CPU_BYTES // 2
    b, c = _random(size, device).view(torch.float32), _random(size, device).view(torch.float32)
    a = torch.empty_like(b)
    times = repeats_s(lambda: torch.add(b, c, alpha=0.5, out=a), device, budget_s)
    by = "" if device.type == "cuda" else f", {threads_text(threads)}"
    return as_rate(
        "triad_bytes_per_s", 3.0 * size, times, f"two reads, one write, {size >> 20} MiB each{by}"
    )


def best_copy_bytes_per_s(device: torch.device, budget_s: float = 0.25) -> float:
    """The best copy within `budget_s`: the reference for a workload that moves memory. The state of
    torch's random generators stays as it was.

    On a CPU the buffers are smaller than those of `copy`, because the peak resident set of a
    process cannot be reset.
    """
    on_gpu = device.type == "cuda"

    def measure(divisor: int) -> float:
        size = ON_GPU_BYTES // divisor if on_gpu else IN_WORKER_BYTES
        source = _random(size, device)
        target = torch.empty_like(source)
        return 2.0 * size / min(repeats_s(lambda: target.copy_(source), device, budget_s))

    with torch.random.fork_rng(devices=[device] if on_gpu else []), torch.no_grad():
        return where_it_fits(measure) if on_gpu else measure(1)


def transfer(
    name: str, direction: Literal["h2d", "d2h"], pinned: bool, device: torch.device, budget_s: float
) -> Reached:
    """Bytes/s of a copy between host and GPU."""
    host = torch.empty(TRANSFER_BYTES, dtype=torch.uint8, pin_memory=pinned)
    host.random_(0, 256)
    there = _random(TRANSFER_BYTES, device)
    source, target = (host, there) if direction == "h2d" else (there, host)
    times = repeats_s(lambda: target.copy_(source, non_blocking=pinned), device, budget_s)
    return as_rate(
        name,
        float(TRANSFER_BYTES),
        times,
        f"{TRANSFER_BYTES >> 20} MiB, {'pinned' if pinned else 'pageable'} host memory",
    )


def threads_text(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _random(size: int, device: torch.device) -> torch.Tensor:
    return torch.rand(size // 4, device=device).view(torch.uint8)


# --- writes to and reads from the disk of the temporary folder, without the page cache ------------

WRITE, READ = "disk_write_bytes_per_s", "disk_read_bytes_per_s"
MIN_FILE_BYTES = 4 * 2**20
MAX_FILE_BYTES = 128 * 2**20
BLOCK = 4 * 2**20
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def disk(folder: Path, budget_s: float) -> list[Reached]:
    """Bytes/s written (fsync included) and read (not from the cache). Raises OSError, for example
    on a full disk."""
    kind = filesystem(folder)
    if kind in IN_MEMORY:
        reason = (
            f"the temporary directory is in memory ({kind}): set TMPDIR to a directory on a disk"
        )
        return [missing(name, reason) for name in (WRITE, READ)]
    path = folder / "disk.bin"
    data = os.urandom(MIN_FILE_BYTES)  # random, so that no filesystem compresses it
    fits = MIN_FILE_BYTES * budget_s / 4 / _write_s(path, data)
    size = (
        int(min(max(fits, MIN_FILE_BYTES), MAX_FILE_BYTES, shutil.disk_usage(folder).free / 4))
        // BLOCK
        * BLOCK
        or BLOCK
    )
    data = os.urandom(size)
    begun, written = now(), list[float]()
    while len(written) < MIN_REPEATS or (len(written) < MAX_REPEATS and now() - begun < budget_s):
        written.append(_write_s(path, data))
    what = f"{size >> 20} MiB in the temporary directory{f' ({kind})' if kind else ''}"
    figures = [
        as_rate(WRITE, float(size), written, f"{what}, with fsync"),
        _read(path, size, budget_s, what),
    ]
    path.unlink()
    return figures


def filesystem(folder: Path) -> str:
    """The type of the filesystem that `folder` lies on; empty where the system does not report
    it."""
    parts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    return next(
        (
            parts[str(above)]
            for above in (folder.resolve(), *folder.resolve().parents)
            if str(above) in parts
        ),
        "",
    )


def _write_s(path: Path, data: bytes) -> float:
    path.unlink(missing_ok=True)
    start = now()
    with path.open("wb", buffering=0) as file:
        for offset in range(0, len(data), BLOCK):
            file.write(memoryview(data)[offset : offset + BLOCK])
        os.fsync(file.fileno())
    return now() - start


def _read(path: Path, size: int, budget_s: float, what: str) -> Reached:
    if not hasattr(os, "posix_fadvise"):
        return missing(
            READ,
            "this system has no posix_fadvise to drop cached files: a read would measure memory",
        )
    buffer = bytearray(BLOCK)
    begun, times = now(), list[float]()
    with path.open("rb", buffering=0) as file:
        while len(times) < MIN_REPEATS or (len(times) < MAX_REPEATS and now() - begun < budget_s):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if _cached(file.fileno()):
                return missing(READ, "the page cache keeps the file: a read would measure memory")
            file.seek(0)
            start = now()
            while file.readinto(buffer):
                pass
            times.append(now() - start)
    return as_rate(READ, float(size), times, f"{what}, page cache dropped")


def _cached(fd: int) -> bool:
    """Whether the file's first page is in the page cache; False where the system cannot report
    it."""
    nowait = getattr(os, "RWF_NOWAIT", None)
    if nowait is None:
        return False
    # the read would wait for the disk, or the filesystem does not support the flag
    with contextlib.suppress(OSError):
        return os.preadv(fd, [bytearray(1)], 0, nowait) > 0
    return False
