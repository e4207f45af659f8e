"""Private folders: where no other user of the machine can create, rename or replace anything.

Programs of the user's job find code by paths in these folders, also after gpuconsole has ended and
removed them. So a folder that is removed must never be free for another user to make again. Folders
for temporary files do not qualify: everybody can write there.

The process that uses a folder holds a lock on it (flock). The kernel releases the lock when the
process ends, however it ends. All containers of one machine see the lock. Other machines that share
the home folder by NFS do not see the lock. Therefore the name of a folder holds the `boot_id` of
its machine.
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
import time
from pathlib import Path

import platformdirs

RUNTIME = "XDG_RUNTIME_DIR"
PREFIX = "scratch-"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FORGOTTEN_S = 14 * 86400.0
"""Folders of other machines, and folders from before the last boot, are removed after this time
without a change."""
MODE = 0o700
MAX_LOOKUPS = 400
"""Entries on the way to a folder; Linux follows 40 links."""


class NoPrivateFolder(OSError):
    """Every candidate for a private folder is open to other users, or cannot be written. The
    message is one line that says what helps."""

    def __init__(self, reasons: list[str]) -> None:
        tried = "; ".join(reasons) or "neither HOME nor the list of users names a home directory"
        text = (
            f"no directory that only you can write: {tried}. Set {RUNTIME} to a directory of yours"
            " with mode 0700"
        )
        super().__init__(errno.EPERM, text)

    def __str__(self) -> str:
        return str(self.strerror)


def runtime_folder() -> Path:
    """The folder for sockets, stores and the agent: below `$XDG_RUNTIME_DIR` where that folder is
    the user's alone, otherwise `data_folder()`.

    Raises NoPrivateFolder, OSError.
    """
    return _first_private([os.environ.get(RUNTIME, ""), *_caches()])


def data_folder() -> Path:
    """The folder for data on disk, such as checkpoints and traces: `~/.cache/gpuconsole/run` (below
    `$XDG_CACHE_HOME` where that is set).

    `$XDG_RUNTIME_DIR` is in memory, and often small: it comes last. Raises NoPrivateFolder,
    OSError.
    """
    return _first_private([*_caches(), os.environ.get(RUNTIME, "")])


def _caches() -> list[str]:
    """The user's cache folders: by the environment, and by the list of users, because HOME may
    belong to another user (sudo)."""
    caches = []
    with contextlib.suppress(RuntimeError):  # neither HOME nor an entry in the list of users
        caches.append(platformdirs.user_cache_dir())
    with contextlib.suppress(KeyError):  # a container may run under any number
        caches.append(os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".cache"))
    return list(dict.fromkeys(caches))


def _first_private(parents: list[str]) -> Path:
    reasons = []
    for parent in filter(os.path.isabs, parents):
        runtime = parent == os.environ.get(RUNTIME)
        folder = Path(parent, "gpuconsole") if runtime else Path(parent, "gpuconsole", "run")
        try:
            if runtime and (reason := _why_open(Path(parent))):
                raise PermissionError(errno.EPERM, reason)
            if not (reason := _why_others_write_above(folder)):
                _make(folder)
                reason = why_not_private(folder)
        except OSError as error:
            reason = f"{folder}: {error.strerror}"
        if not reason:
            return folder
        reasons.append(reason)
    raise NoPrivateFolder(reasons)


def _make(folder: Path) -> None:
    """Create `folder` and what is missing above it, for the user alone. A folder of the user's own
    that is open to others is closed.

    The folders above have been checked: in a folder of another user, a folder of ours would be in
    that user's way.
    """
    for missing in reversed([path for path in folder.parents if not path.exists()]):
        missing.mkdir(mode=MODE, exist_ok=True)
    folder.mkdir(mode=MODE, exist_ok=True)
    status = folder.lstat()
    if (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and stat.S_IMODE(status.st_mode) != MODE
    ):
        folder.chmod(MODE)


def why_not_private(folder: Path) -> str:
    """Why another user could replace `folder` or create entries in it, in one line; empty where
    only its owner and root can.

    All folders above count too, because a folder can be renamed by everybody who can write the one
    above it. Raises OSError.
    """
    if reason := _why_open(folder):
        return f"{folder}: {reason}"
    return _why_others_write_above(folder)


def _why_others_write_above(folder: Path) -> str:
    """Why another user could replace a folder above `folder`, or a link on the way to it; empty
    where nobody can. Folders that do not exist yet are left out. Raises OSError."""
    for path in _way_to(folder):
        parent = path.parent
        if os.path.lexists(parent) and (reason := _who_else_writes(parent, path)):
            return f"{folder}: {reason}"
    return ""


def _way_to(folder: Path) -> list[Path]:
    """The entries that the system looks up one after the other on the way to `folder`, from the
    root, following one link at a time. No parent is a link itself. Raises OSError for links that
    lead nowhere but to each other."""
    way: list[Path] = []
    here, rest = Path("/"), list(folder.absolute().parts[1:])
    for _ in range(MAX_LOOKUPS):
        if not rest:
            return way
        name = rest.pop(0)
        if name == "..":
            here = here.parent
            continue
        entry = here / name
        way.append(entry)
        if entry.is_symlink():
            target = Path(os.readlink(entry))
            here = Path("/") if target.is_absolute() else here
            rest = [*(target.parts[1:] if target.is_absolute() else target.parts), *rest]
        else:
            here = entry
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))


def _who_else_writes(parent: Path, below: Path) -> str:
    """Which other user could replace `below`, an entry of `parent`; empty where nobody can. Raises
    OSError."""
    status, users = parent.lstat(), _trusted_users()
    if status.st_uid not in users:
        return f"{parent} belongs to another user"
    is_ours = not os.path.lexists(below) or below.lstat().st_uid in users
    if status.st_mode & stat.S_ISVTX and is_ours:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"everybody can write {parent}"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"the group {_group_name(status.st_gid)} can write {parent} (chmod g-w {parent})"
    return ""


def _trusted_users() -> tuple[int, ...]:
    """The user and root. In a user namespace without root (an unprivileged container) root's files
    belong to the number for unknown users."""
    with contextlib.suppress(OSError, ValueError):
        mapped = [
            line.split()
            for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
        ]
        if not any(int(first) == 0 for first, _, _ in mapped):
            return (
                os.geteuid(),
                int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii")),
            )
    return (0, os.geteuid())


def _why_open(folder: Path) -> str:
    """Why `folder` is not the user's own, or is open to others; empty where only the user has
    permissions."""
    try:
        status = folder.lstat()
    except OSError as error:
        return str(error.strerror)
    if not stat.S_ISDIR(status.st_mode):
        return "not a directory"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if stat.S_IMODE(status.st_mode) & ~MODE & 0o777:
        return f"has mode {stat.S_IMODE(status.st_mode):04o}, not {MODE:04o}"
    return ""


def _is_own_group(number: int) -> bool:
    """Whether the user is alone in the group: many systems give each user a group of the same name,
    and folders that the group can write. The list of a group does not name the users whose primary
    group it is."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    members = {
        *group.gr_mem,
        *(entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == number),
    }
    return group.gr_name == user and members <= {user, "root"}


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _machine() -> str:
    """The first letters of this machine's `boot_id`, which changes at each boot; empty where the
    system has none."""
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text(encoding="ascii")[:8]
    return ""


class Scratch:
    """A new private folder in `parent`, one of the two above. `close` removes it with all that is
    in it."""

    def __init__(self, parent: Path) -> None:
        """Raises OSError where no folder can be made."""
        while True:
            self.path = Path(
                tempfile.mkdtemp(prefix=f"{PREFIX}{_machine()}-{os.getpid()}-", dir=parent)
            )
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # another console swept the folder at once
                continue
            # a file system without locks: the folder is then never swept
            with contextlib.suppress(OSError):
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
    """Remove the user's scratch folders that no living process of this machine has locked, and very
    old ones. What cannot be removed stays."""
    for choose in (runtime_folder, data_folder):
        with contextlib.suppress(OSError):
            for folder in choose().glob(f"{PREFIX}*"):
                # RecursionError: shutil.rmtree before Python 3.13, in a folder with a thousand
                # levels
                with contextlib.suppress(OSError, RecursionError):
                    if (
                        folder.name.startswith(f"{PREFIX}{_machine()}-")
                        or time.time() - folder.stat().st_mtime > FORGOTTEN_S
                    ):
                        _sweep(folder)


def _sweep(folder: Path) -> None:
    """Remove `folder` where it is the user's own and nobody has locked it. Raises OSError,
    RecursionError."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: in use
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
