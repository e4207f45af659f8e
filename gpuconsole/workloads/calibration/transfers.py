"""Measures copies: within the memory of the device, between the device and the host, and to and from the disk without the page cache."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Literal

import psutil
import torch

from gpuconsole.agent.clock import now
from gpuconsole.model.machine import Reached
from gpuconsole.workloads.calibration.repeats import LEAST, MOST, as_rate, missing, repeats_s, where_it_fits

# --- copies within the device's memory, and between it and the host ------------------------------------------

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


# --- writes to and reads from the disk of the temporary folder, without the page cache -----------------------

WRITE, READ = "disk_write_bytes_per_s", "disk_read_bytes_per_s"
SMALLEST, LARGEST = 4 * 2**20, 128 * 2**20
BLOCK = 4 * 2**20
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def disk(folder: Path, budget_s: float) -> list[Reached]:
    """Bytes/s written (fsync included) and read (not from the cache). Raises OSError, for example on a full disk."""
    kind = filesystem(folder)
    if kind in IN_MEMORY:
        reason = f"the temporary folder is in memory ({kind}): set TMPDIR to a folder on a disk"
        return [missing(name, reason) for name in (WRITE, READ)]
    path = folder / "disk.bin"
    data = os.urandom(SMALLEST)  # random, so that no filesystem compresses it
    fits = SMALLEST * budget_s / 4 / _write_s(path, data)
    size = int(min(max(fits, SMALLEST), LARGEST, shutil.disk_usage(folder).free / 4)) // BLOCK * BLOCK or BLOCK
    data = os.urandom(size)
    begun, written = now(), list[float]()
    while len(written) < LEAST or (len(written) < MOST and now() - begun < budget_s):
        written.append(_write_s(path, data))
    what = f"{size >> 20} MiB in the temporary folder{f' ({kind})' if kind else ''}"
    figures = [as_rate(WRITE, float(size), written, f"{what}, with fsync"), _read(path, size, budget_s, what)]
    path.unlink()
    return figures


def filesystem(folder: Path) -> str:
    """The type of the filesystem that `folder` lies on; empty where the system does not report it."""
    parts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    return next((parts[str(above)] for above in (folder.resolve(), *folder.resolve().parents) if str(above) in parts), "")


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
        return missing(READ, "this system has no posix_fadvise to drop cached files: a read would measure memory")
    buffer = bytearray(BLOCK)
    begun, times = now(), list[float]()
    with path.open("rb", buffering=0) as file:
        while len(times) < LEAST or (len(times) < MOST and now() - begun < budget_s):
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
    """Whether the file's first page is in the page cache; False where the system cannot report it."""
    nowait = getattr(os, "RWF_NOWAIT", None)
    if nowait is None:
        return False
    with contextlib.suppress(OSError):  # the read would wait for the disk, or the filesystem does not support the flag
        return os.preadv(fd, [bytearray(1)], 0, nowait) > 0
    return False
