"""Writes to and reads from the disk of the temporary folder, without the page cache."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import psutil

from gpuconsole.agent.clock import now
from gpuconsole.model.machine.calibration import Reached
from gpuconsole.workloads.calibration.repeats import LEAST, MOST, as_rate, missing

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
