"""Writing a file completely or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file in the folder of `path`, sync it and rename it to `path`. Raises OSError.

    The function follows a link. It writes into a device or a pipe and does not replace the device or the pipe.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        raise


def check_writable(path: Path) -> None:
    """Raise OSError if `path` cannot be written. Called before a run starts, so that the run does not lose its result at its end."""
    path = path.resolve()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    if path.exists() and not path.is_file():
        return
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"folder {folder} does not exist")
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
    os.close(handle)
    os.unlink(name)
