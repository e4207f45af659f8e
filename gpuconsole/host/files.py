"""Open the files that other users could reach: each file that we write, and each file of somebody
else that we read.

A path is followed one entry at a time, by descriptors. So a check and the use of an entry see the
same entry. Nothing is written through a symbolic link that belongs to neither the user nor root,
because the link could point to a file of the user. A pipe or a device of another user is neither
read nor written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gpuconsole.host.folders import MAX_LOOKUPS, trusted_users

MAX_NAMES = 100
"""The numbers that are added to a name that is taken are below this limit."""
MAX_WAIT_S = 10.0
"""The longest wait for a program that writes to a pipe."""
PERMISSIONS = 0o777
"""The bits of a file's mode that are kept. Setuid, setgid and sticky are not kept."""
_SAFELY = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""O_NONBLOCK: opening a pipe without a program at its other end would wait for ever."""


# --- files of somebody ----------------------------------------------------------------------------


def reading(path: Path, *, regular: bool = False) -> IO[bytes]:
    """Open `path` for reading. With `regular`, refuse pipes and devices: use this for a file that
    the user did not name. Raises OSError."""
    with _place(path, reads=True) as (folder, name, nofollow):
        handle = os.open(name, os.O_RDONLY | nofollow | _SAFELY, dir_fd=folder)
    file = os.fdopen(handle, "rb")
    try:
        status = os.fstat(handle)
        if regular and not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if nofollow:
            _check_kind(status, path)
        os.set_blocking(handle, True)
        if stat.S_ISFIFO(status.st_mode):
            _wait_for_writer(handle, path)
    except OSError:
        file.close()
        raise
    return file


def _wait_for_writer(handle: int, path: Path) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if not poll.poll(MAX_WAIT_S * 1000):
        raise OSError(errno.ETIMEDOUT, "no program writes to this pipe", str(path))


def read_limited(path: Path, most_bytes: int, *, regular: bool = False) -> bytes:
    """Return the content of `path`, see `reading`. Raises OSError, also for a file of more than
    `most_bytes`: a large file must not take all memory."""
    with reading(path, regular=regular) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"the file has more than {most_bytes / 2**20:g} MiB", str(path))
    return data


# --- files of ours --------------------------------------------------------------------------------


def make_writable_folder(folder: Path) -> None:
    """Create `folder` if it does not exist, and check that files can be written in `folder`. Raises
    OSError."""
    with contextlib.suppress(FileNotFoundError), _place(folder / "file"):
        pass  # no link of another user is on the way
    folder.mkdir(parents=True, exist_ok=True)
    with _place(folder / "file") as (here, name, _):
        _try_to_write(here, name)


def new_folder(path: Path) -> Path:
    """Create the folder `path`, or the same name with a number if the name is taken, because an
    existing folder may belong to another user. Return the path of the new folder. Only the user can
    write in the new folder. Raises OSError."""
    make_writable_folder(path.parent)
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


def unused(path: Path) -> Path:
    """Return `path`, or the same name with a number if the name is taken."""
    return next((other for other in _numbered(path) if not os.path.lexists(other)), path)


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
            os.close(_open_to_write(target, os.O_CREAT | os.O_EXCL, 0o666, follow=False))
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
    with _place(path, follow=follow) as (folder, name, nofollow):
        before = _status(name, folder, nofollow)
        kind = before.st_mode if before is not None else stat.S_IFREG
        if not nofollow or (follow and not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)):
            with os.fdopen(_open_to_write(path, os.O_TRUNC, 0o666), "wb") as file:
                yield file
            return
        partial, handle = _temporary_file(folder, name)
        try:
            with os.fdopen(handle, "wb") as file:
                if before is not None and stat.S_ISREG(kind) and _is_own(before):
                    os.fchmod(handle, kind & PERMISSIONS)
                yield file
                file.flush()
                os.fsync(handle)
            os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=folder)
            raise


def open_own(path: Path, *, new: bool = False, append: bool = False) -> int:
    """Return a descriptor that writes to `path` in place: from the begin of the file, or with
    `append` from the end. Only the user can read and write a file that this function creates.

    `new`: the file must not exist, not even as a link. Use this for names that another user could
    guess. Raises OSError, also for a file of another user, because that user could read the output.
    """
    flags = os.O_CREAT | (os.O_EXCL if new else 0) | (os.O_APPEND if append else 0)
    handle = _open_to_write(path, flags, 0o600, follow=not new)
    try:
        status = os.fstat(handle)
        _check_own(path, status)
        if not append and stat.S_ISREG(status.st_mode):
            os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def check_writable(path: Path, *, in_place: bool = False) -> None:
    """Raise OSError if `path` cannot be written. `in_place`: `open_own` will write the file. This
    check runs before a run starts, so that the result of the run is not lost at the end."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    try:
        with _place(path) as (folder, name, nofollow):
            status = _status(name, folder, nofollow)
            if status is not None and in_place:
                _check_own(path, status)
            if status is None or stat.S_ISREG(status.st_mode):
                _try_to_write(folder, name)
            elif nofollow:
                _check_kind(status, path)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"directory {path.resolve().parent} does not exist") from None


# --- where a path leads ---------------------------------------------------------------------------


@contextlib.contextmanager
def _place(
    path: Path, *, follow: bool = True, reads: bool = False
) -> Iterator[tuple[int, str, int]]:
    """Follow `path`. Yield a descriptor of the folder, the name in this folder, and O_NOFOLLOW. The
    last is 0 for a link in /proc, such as /dev/stdout: only the kernel can follow it.

    Raises OSError, also for a link of another user on the way, see `_check_link`.
    """
    with contextlib.ExitStack() as opened:

        def look_up(name: str, folder: int | None, flags: int = 0) -> int:
            handle = os.open(name, os.O_PATH | os.O_CLOEXEC | flags, dir_fd=folder)
            opened.callback(os.close, handle)
            return handle

        here = look_up("/" if path.is_absolute() else ".", None)
        rest = _names(path)
        for _ in range(MAX_LOOKUPS):
            name = rest.pop(0) if rest else "."
            if not rest and not follow:
                break
            try:
                entry = look_up(name, here, os.O_NOFOLLOW)
            except FileNotFoundError:
                if rest:
                    raise
                break
            status = os.fstat(entry)
            is_link = stat.S_ISLNK(status.st_mode)
            by_kernel = is_link and status.st_dev == _proc_device()
            if not rest and (by_kernel or not is_link):
                yield here, name, 0 if by_kernel else os.O_NOFOLLOW
                return
            if by_kernel:
                here = look_up(name, here)
            elif not is_link:
                here = entry
            else:
                _check_link(name, status, os.fstat(here), reads)
                target = Path(os.readlink("", dir_fd=entry))
                here = look_up("/", None) if target.is_absolute() else here
                rest = [*_names(target), *rest]
        else:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        yield here, name, os.O_NOFOLLOW


def _names(path: Path) -> list[str]:
    return list(path.parts[1:] if path.is_absolute() else path.parts)


def _proc_device() -> int:
    """Return the device of /proc; -1 without /proc."""
    try:
        return os.stat("/proc/self/fd").st_dev
    except OSError:
        return -1


def _check_link(name: str, link: os.stat_result, folder: os.stat_result, reads: bool) -> None:
    """Raise PermissionError for a link that belongs to neither the user nor root. For reading the
    rule is that of the kernel (fs.protected_symlinks): only a link in a folder such as /tmp counts.
    """
    if link.st_uid in trusted_users():
        return
    shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    if reads and (not shared or link.st_uid == folder.st_uid):
        return
    raise PermissionError(errno.EPERM, f"{name} is a symbolic link of another user", name)


def _check_kind(status: os.stat_result, path: Path) -> None:
    """Raise OSError for a folder, and for a pipe or a device of another user."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode) and status.st_uid not in trusted_users():
        raise PermissionError(errno.EPERM, "a pipe or a device of another user", str(path))


def _open_to_write(path: Path, flags: int, mode: int, *, follow: bool = True) -> int:
    """Open `path`, which may be a pipe or a device of the user or of root. Raises OSError."""
    with _place(path, follow=follow) as (folder, name, nofollow):
        new = flags & os.O_EXCL or not nofollow
        if not new and (status := _status(name, folder, nofollow)) is not None:
            _check_kind(status, path)
        try:
            handle = os.open(name, os.O_WRONLY | flags | nofollow | _SAFELY, mode, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            raise OSError(errno.ENXIO, "no program reads this pipe", str(path)) from None
    try:
        if nofollow:
            _check_kind(os.fstat(handle), path)
        os.set_blocking(handle, True)
    except OSError:
        os.close(handle)
        raise
    return handle


def _check_own(path: Path, status: os.stat_result) -> None:
    """Raise PermissionError for a regular file of another user, and for one that has a second name:
    another user can give a second name to a file of the user."""
    if not stat.S_ISREG(status.st_mode):
        return
    if not _is_own(status):
        raise PermissionError(errno.EPERM, "the file belongs to another user", str(path))
    if status.st_nlink > 1:
        raise PermissionError(errno.EPERM, "the file has a second name (a hard link)", str(path))


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


def _status(name: str, folder: int, nofollow: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=not nofollow)
    except FileNotFoundError:
        return None


def _temporary_file(folder: int, name: str) -> tuple[str, int]:
    """Create a file in `folder`, with the permissions of the umask. Return its name and its
    descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        partial = f".{name}.{os.urandom(4).hex()}"
        with contextlib.suppress(FileExistsError):
            return partial, os.open(partial, flags, 0o666, dir_fd=folder)


def _try_to_write(folder: int, name: str) -> None:
    partial, handle = _temporary_file(folder, name)
    os.close(handle)
    os.unlink(partial, dir_fd=folder)
