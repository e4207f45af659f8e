"""Private folders: where no other user of the machine can create, rename or replace anything.

Programs of the user's job find code by paths in these folders, also after gpuconsole has ended and removed them. So a folder that is removed must
never be free for another user to make again. Folders for temporary files do not qualify: everybody can write there.

A folder in use is locked (flock) by its owner until the owner ends, however it ends. A lock is valid across containers that share the folder; a pid is
not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

import platformdirs

RUNTIME = "XDG_RUNTIME_DIR"
PREFIX = "scratch-"
MODE = 0o700


class NoPrivateFolder(OSError):
    """Every candidate for a private folder is open to other users, or cannot be written. The message is one line that says what helps."""

    def __init__(self, reasons: list[str]) -> None:
        text = f"no folder that only you can write: {'; '.join(reasons)}. Set {RUNTIME} to a folder of yours with mode 0700"
        super().__init__(errno.EPERM, text)

    def __str__(self) -> str:
        return str(self.strerror)


def runtime_folder() -> Path:
    """The folder for sockets, stores and the agent: below `$XDG_RUNTIME_DIR` where that folder is the user's alone, otherwise `data_folder()`.

    Raises NoPrivateFolder, OSError.
    """
    return _first_private([os.environ.get(RUNTIME, ""), *_caches()])


def data_folder() -> Path:
    """The folder for data on disk, such as checkpoints and traces: `~/.cache/gpuconsole/run` (below `$XDG_CACHE_HOME` where that is set).

    `$XDG_RUNTIME_DIR` is in memory, and often small. Raises NoPrivateFolder, OSError.
    """
    return _first_private(_caches())


def _caches() -> list[str]:
    """The user's cache folders: by the environment, and by the list of users, because HOME may belong to another user (sudo)."""
    caches = [platformdirs.user_cache_dir()]
    with contextlib.suppress(KeyError):  # a container may run under any number
        caches.append(os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".cache"))
    return list(dict.fromkeys(caches))


def _first_private(parents: list[str]) -> Path:
    reasons = []
    for parent in filter(os.path.isabs, parents):
        runtime = parent == os.environ.get(RUNTIME)
        folder = Path(parent, "gpuconsole") if runtime else Path(parent, "gpuconsole", "run")
        try:
            if runtime and (reason := _why_open(Path(parent), MODE)):
                raise PermissionError(errno.EPERM, reason)
            _make(folder)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
            continue
        if reason := why_not_private(folder):
            reasons.append(reason)
            continue
        return folder
    raise NoPrivateFolder(reasons)


def _make(folder: Path) -> None:
    """Create `folder` and what is missing above it, for the user alone. A folder of the user's own that is open to others is closed."""
    for missing in reversed([path for path in folder.parents if not path.exists()]):
        missing.mkdir(mode=MODE, exist_ok=True)
    folder.mkdir(mode=MODE, exist_ok=True)
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != MODE:
        folder.chmod(MODE)


def why_not_private(folder: Path) -> str:
    """Why another user could replace `folder` or create entries in it, in one line; empty where only its owner and root can.

    All folders above count too, because a folder can be renamed by everybody who can write the one above it. Raises OSError.
    """
    if reason := _why_open(folder, MODE):
        return f"{folder}: {reason}"
    for path in dict.fromkeys([folder, folder.resolve()]):  # who can replace a link can replace the folder too
        for below, parent in zip([path, *path.parents], path.parents, strict=False):
            if reason := _who_else_writes(parent, below):
                return f"{folder}: {reason}"
    return ""


def _who_else_writes(parent: Path, below: Path) -> str:
    """Which other user could replace `below`, an entry of `parent`; empty where nobody can. Raises OSError."""
    status, users = parent.lstat(), (0, os.geteuid())
    if status.st_uid not in users:
        return f"{parent} belongs to another user"
    if stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and below.lstat().st_uid in users):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"everybody can write {parent}"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"the group {_group_name(status.st_gid)} can write {parent} (chmod g-w {parent})"
    return ""


def _why_open(folder: Path, mode: int) -> str:
    """Why `folder` is not a folder of the user's own with at most the permissions `mode`; empty where it is one."""
    try:
        status = folder.lstat()
    except OSError as error:
        return str(error.strerror)
    if not stat.S_ISDIR(status.st_mode):
        return "not a folder"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if stat.S_IMODE(status.st_mode) & ~mode & 0o777:
        return f"has mode {stat.S_IMODE(status.st_mode):04o}, not {mode:04o}"
    return ""


def _is_own_group(number: int) -> bool:
    """Whether the user is alone in the group: many systems give each user a group of the same name, and folders that the group can write."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return (group.gr_name == user or number == 0) and set(group.gr_mem) <= {user, "root"}


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


class Scratch:
    """A new private folder in `parent`, one of the two above. `close` removes it with all that is in it."""

    def __init__(self, parent: Path) -> None:
        """Raises OSError where no folder can be made."""
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
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
    """Remove the user's scratch folders that no living process has locked. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        for parent in {runtime_folder(), data_folder()}:
            for folder in parent.glob(f"{PREFIX}*"):
                # RecursionError: shutil.rmtree before Python 3.13, in a folder with a thousand levels
                with contextlib.suppress(OSError, RecursionError):
                    _sweep(folder)


def _sweep(folder: Path) -> None:
    """Remove `folder` where it is the user's own and nobody has locked it. Raises OSError, RecursionError."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: in use
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
