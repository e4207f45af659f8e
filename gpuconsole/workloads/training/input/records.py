"""Reads of the disk itself, as training makes them on a data set that is larger than the machine's memory."""

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
"""Bytes: a photograph, and a multiple of what O_DIRECT reads are aligned to."""
RECORDS = 256


def prepare_records() -> Path:
    """The file of random records, made once per user.

    Raises ValueError, one line, where there is no room for it, or its file system reads through the page cache only.
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
    """Whole or not at all, and to the disk: blocks that were never written would not be read from it."""
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:
        file.write(random.Random(0).randbytes(RECORD * RECORDS))
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another run made the same file first
            os.link(file.name, path)


def read_records(path: Path, count: int, chance: random.Random) -> None:
    """Read `count` records at random places, one after the other, each from the disk."""
    descriptor, buffer = _opened(path)
    for _ in range(count):
        os.preadv(descriptor, [buffer], RECORD * chance.randrange(RECORDS))


@functools.cache
def _opened(path: Path) -> tuple[int, mmap.mmap]:
    """A descriptor and an aligned buffer, once per process; a process that is forked off has the buffer for itself."""
    return os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, RECORD, flags=mmap.MAP_PRIVATE)
