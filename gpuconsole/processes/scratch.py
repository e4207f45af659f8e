"""Scratch folders for children, and the removal of folders whose owner was killed.

The owner holds a lock (flock) on its folder until it ends, however it ends. A lock is valid across containers that share /tmp; a pid is not.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "gpuconsole-scratch-"


class Scratch:
    """A new folder in the folder for temporary files. `close` removes it with all that is in it."""

    def __init__(self) -> None:
        """Raises OSError where no folder can be made."""
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # another console swept the folder at once
                continue
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._lock)  # another console swept the folder before it was locked

    def close(self) -> None:
        """A second call changes nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def sweep_scratch() -> None:
    """Remove the scratch folders that no living process has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # removed meanwhile, or another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use, or a file system without locks
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
