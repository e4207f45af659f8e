"""Reading files of bounded size, and writing a file completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MOST_NAMES = 100
"""Files of one name, with numbers."""


def read_limited(path: Path, most_bytes: int) -> bytes:
    """The content of `path`. Raises OSError, also for a larger file: a file from elsewhere must not take all memory."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"the file has more than {most_bytes / 2**20:g} MiB", str(path))
    return data


def make_writable_folder(folder: Path) -> None:
    """Create `folder` where it does not exist, and check that files can be written there. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_whole(path: Path, data: bytes, *, follow: bool = True) -> None:
    """Write `data` to `path` by `writing`. Raises OSError."""
    with writing(path, follow=follow) as file:
        file.write(data)


def write_new(path: Path, data: bytes) -> Path:
    """Write `data` whole to a new file `path`, or to that name with a number where the name is taken, as by another console that ends in the same second;
    returns where. A link, which another user could have made, is replaced. Raises OSError."""
    for target in (path, *(path.with_stem(f"{path.stem}-{number}") for number in range(2, MOST_NAMES))):
        with contextlib.suppress(FileExistsError):
            if target.is_symlink():
                write_whole(target, data, follow=False)
                return target
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))  # the name is ours now
            try:
                write_whole(target, data, follow=False)
            except OSError:
                target.unlink(missing_ok=True)
                raise
            return target
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


@contextlib.contextmanager
def writing(path: Path, *, follow: bool = True) -> Iterator[IO[bytes]]:
    """A file that takes the name `path` once it is complete and synced. Raises OSError.

    The permissions are those of the file that it replaces, else those of the umask. A device or a pipe is written, not replaced. With `follow` a link
    is followed. Without `follow` the link itself is replaced: for names that another user could guess and link to a file of ours.
    """
    target = path.resolve() if follow else path.parent.resolve() / path.name
    before = _status(target)
    if before is not None and follow and not stat.S_ISREG(before.st_mode) and not stat.S_ISDIR(before.st_mode):
        with target.open("wb") as file:
            yield file
        return
    kept_mode = stat.S_IMODE(before.st_mode) if before is not None and stat.S_ISREG(before.st_mode) else None
    partial, handle = _new_beside(target)
    try:
        with os.fdopen(handle, "wb") as file:
            if kept_mode is not None:
                os.fchmod(handle, kept_mode)
            yield file
            file.flush()
            os.fsync(handle)
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        raise


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _new_beside(target: Path) -> tuple[Path, int]:
    """A new file in the folder of `target`, with the permissions of the umask, and its descriptor."""
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def check_writable(path: Path) -> None:
    """Raise OSError if `path` cannot be written. Called before a run starts, so that the run does not lose its result at its end."""
    path = path.resolve()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    if path.exists() and not path.is_file():
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"directory {path.parent} does not exist")
    partial, handle = _new_beside(path)
    os.close(handle)
    partial.unlink()
