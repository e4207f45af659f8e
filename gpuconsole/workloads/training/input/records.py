"""Direct reads of the disk, as training on a data set that is larger than the machine's memory makes them."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import random
import tempfile
from pathlib import Path

from gpuconsole.workloads.cache import cache_folder

RECORD = 262144
"""Bytes of a record: about a photograph, and a multiple of the alignment of O_DIRECT."""
RECORDS = 256


def prepare_records() -> Path:
    """The file of random records, created once per user.

    Raises ValueError, one line, where there is no space for it or its file system does not support O_DIRECT.
    """
    path = cache_folder() / "records-1"
    try:
        if not path.exists():
            _write(path)
        _opened(path)
    except (AttributeError, OSError) as error:
        raise ValueError(f"storage_reads: {path} cannot be made, or cannot be read around the page cache (O_DIRECT): {error}") from error
    return path


def _write(path: Path) -> None:
    """Write the whole file or nothing, and sync it: blocks that were never written would not be read from the disk."""
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:
        file.write(random.Random(0).randbytes(RECORD * RECORDS))
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another run created the same file first
            os.link(file.name, path)


def read_records(path: Path, count: int, chance: random.Random) -> None:
    """Read `count` records at random places from the disk, in sequence."""
    descriptor, buffer = _opened(path)
    for _ in range(count):
        os.preadv(descriptor, [buffer], RECORD * chance.randrange(RECORDS))


@functools.cache
def _opened(path: Path) -> tuple[int, mmap.mmap]:
    """A descriptor and an aligned buffer, one pair per process; a forked process gets a private copy of the buffer."""
    return os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, RECORD, flags=mmap.MAP_PRIVATE)
