"""Read files of bounded size, and write a file completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MAX_NAMES = 100
"""The numbers that are added to a name that is taken are below this limit."""
PERMISSIONS = 0o777
"""The bits of a file's mode that are kept. Setuid, setgid and sticky are not kept."""


def read_limited(path: Path, most_bytes: int) -> bytes:
    """Return the content of `path`. Raises OSError, also for a file of more than `most_bytes`: a
    large file must not take all memory."""
    with path.open("rb") as file:
        return _limited(file, path, most_bytes)


def _limited(file: IO[bytes], path: Path, most_bytes: int) -> bytes:
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"the file has more than {most_bytes / 2**20:g} MiB", str(path))
    return data


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file. Raises OSError, also for a file of more than
    `most_bytes`, and for devices and pipes, because reading them may never end."""
    with _regular(path) as file:
        return _limited(file, path, most_bytes)


def read_start(path: Path, most_bytes: int = 4096) -> bytes:
    """Return the first bytes of a regular file. Raises OSError, also for devices and pipes."""
    with _regular(path) as file:
        return file.read(most_bytes)


@contextlib.contextmanager
def _regular(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file for reading. Raises OSError for other kinds of files."""
    # O_NONBLOCK: the open of a pipe without a writer would wait
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def make_writable_folder(folder: Path) -> None:
    """Create `folder` if it does not exist, and check that files can be written in `folder`. Raises
    OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def new_folder(path: Path) -> Path:
    """Create the folder `path`, or the same name with a number if the name is taken, because an
    existing folder may belong to another user. Return the path of the new folder. Only the user can
    write in the new folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for target in _numbered(path):
        with contextlib.suppress(FileExistsError):
            target.mkdir(mode=0o755)
            return target
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def _numbered(path: Path) -> Iterator[Path]:
    """Yield `path`, then the same name with the numbers 2, 3, ..."""
    yield path
    for number in range(2, MAX_NAMES):
        yield path.with_stem(f"{path.stem}-{number}")


def write_whole(path: Path, data: bytes, *, follow: bool = True) -> None:
    """Write `data` to `path` by `writing`. Raises OSError."""
    with writing(path, follow=follow) as file:
        file.write(data)


def write_new(path: Path, data: bytes) -> Path:
    """Write `data` completely to a new file `path`, or to the same name with a number if the name
    is taken (for example by another console that ends in the same second). Return the path of the
    file. A link at this path is replaced, because another user could have made it. Raises
    OSError."""
    for target in _numbered(path):
        with contextlib.suppress(FileExistsError):
            if target.is_symlink():
                write_whole(target, data, follow=False)
                return target
            # from here on the name belongs to this process
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            try:
                write_whole(target, data, follow=False)
            except OSError:
                target.unlink(missing_ok=True)
                raise
            return target
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


@contextlib.contextmanager
def writing(path: Path, *, follow: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing. The file gets the name `path` when it is complete and
    synced. Raises OSError.

    If the new file replaces a file of the user, it keeps the permissions of that file. Otherwise
    the umask decides the permissions: another user must not decide who may write the user's files
    or run them. A device or a pipe is written, not replaced. With `follow`, the function writes to
    the target of a link. Without `follow`, the new file replaces the link itself. Use this for
    names that another user could guess: such a link could point to a file of the user.
    """
    target = path.resolve() if follow else path.parent.resolve() / path.name
    before = _status(target)
    if (
        before is not None
        and follow
        and not stat.S_ISREG(before.st_mode)
        and not stat.S_ISDIR(before.st_mode)
    ):
        with target.open("wb") as file:
            yield file
        return
    kept_mode = (
        before.st_mode & PERMISSIONS
        if before is not None and stat.S_ISREG(before.st_mode) and _is_own(before)
        else None
    )
    partial, handle = _temporary_file(target)
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


def open_own(path: Path, *, new: bool = False, append: bool = False) -> int:
    """Return a descriptor that writes to `path` in place: from the begin of the file, or with
    `append` from the end. Only the user can read and write a file that this function creates.

    `new`: the file must not exist, not even as a link. Use this for names that another user could
    guess. Raises OSError, also for a file of another user, because that user could read the output.
    """
    mode = (os.O_EXCL if new else 0) | (os.O_APPEND if append else 0)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o600)
    try:
        status = os.fstat(handle)
        _check_own(path, status)
        if not append and stat.S_ISREG(status.st_mode):
            os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def _check_own(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode) and not _is_own(status):
        raise PermissionError(errno.EPERM, "the file belongs to another user", str(path))


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _temporary_file(target: Path) -> tuple[Path, int]:
    """Create a file in the folder of `target`, with the permissions of the umask. Return the path
    and the descriptor of the file."""
    while True:
        path = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
        with contextlib.suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def check_writable(path: Path, *, in_place: bool = False) -> None:
    """Raise OSError if `path` cannot be written. `in_place`: `open_own` will write the file. This
    check runs before a run starts, so that the result of the run is not lost at the end."""
    path = path.resolve()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    if in_place and path.exists():
        _check_own(path, path.stat())
    if path.exists() and not path.is_file():
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"directory {path.parent} does not exist")
    partial, handle = _temporary_file(path)
    os.close(handle)
    partial.unlink()
