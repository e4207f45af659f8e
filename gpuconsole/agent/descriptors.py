"""What the agent holds in the user's process: file descriptors, and objects that must never be
freed.

A program may close all descriptors, as daemons do, and open files of its own. The number of a
descriptor of ours then belongs to one of these files.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

MIN_NUMBERS = 3
"""In each file of /proc that is read here. A file with fewer is one of the program's, under the
number of a descriptor of ours."""


def identity(fd: int) -> tuple[int, int]:
    """The device and the inode of an open file. Raises OSError where the descriptor is closed."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def is_same(fd: int, before: tuple[int, int]) -> bool:
    """Whether `fd` is still the open file with the identity `before`."""
    try:
        return identity(fd) == before
    except OSError:
        return False


def make_immortal(*objects: Any) -> None:
    """Never free these objects, at the end of the process neither."""
    kept = ctypes.py_object(objects)
    ctypes.pythonapi.Py_IncRef(kept)


class ProcFile:
    """A file of /proc that stays open: to open it for each reading takes several times as long. It
    is `gone` where there is no such file, where the thread that it tells of has ended, and where
    the program has closed the descriptor."""

    def __init__(self, path: str) -> None:
        self.gone = False
        try:
            self.fd = os.open(path, os.O_RDONLY)
            self._identity = identity(self.fd)
        except OSError:
            self.gone = True

    def numbers(self) -> list[int]:
        """The numbers in the file, at least three; an empty list where the file is gone. Never
        raises."""
        if self.gone:
            return []
        try:
            numbers = [int(word) for word in os.pread(self.fd, 128, 0).split()]
        except (OSError, ValueError):
            # ValueError: the descriptor belongs to a file of the program now
            numbers = []
        if len(numbers) < MIN_NUMBERS:
            self.close()
            return []
        return numbers

    def close(self) -> None:
        """Close the descriptor, where it is still ours."""
        if not self.gone and is_same(self.fd, self._identity):
            os.close(self.fd)
        self.gone = True
