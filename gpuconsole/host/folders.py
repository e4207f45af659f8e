"""Find and create private folders, in which no other user of the machine can create, rename or
replace anything.

Programs of the user's job search for code in these folders, also after gpuconsole has ended and
removed the folders. So another user must never be able to create a removed folder again. Folders
such as /tmp are not private: everybody can write in them.

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
import struct
import tempfile
import time
from pathlib import Path
from typing import Literal

import platformdirs

RUNTIME = "XDG_RUNTIME_DIR"
PREFIX = "scratch-"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FORGOTTEN_S = 14 * 86400.0
"""Folders of other machines, and folders from before the last boot, are removed after this time
without a change."""
MODE = 0o700
MAX_LOOKUPS = 400
"""Most entries on the way to a folder. Linux follows 40 links."""


class NoPrivateFolder(OSError):
    """Raised if other users can write each candidate for a private folder, or the user cannot write
    it. The message is one line that says what the user can do."""

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
    """Return the folder for sockets, stores and the agent. It is below `$XDG_RUNTIME_DIR` if only
    the user has permissions for that folder; otherwise it is `data_folder()`.

    Raises NoPrivateFolder, OSError.
    """
    return _first_private([os.environ.get(RUNTIME, ""), *_caches()])


def data_folder() -> Path:
    """Return the folder for data on disk, such as checkpoints and traces: `~/.cache/gpuconsole/run`
    (below `$XDG_CACHE_HOME` if that is set).

    `$XDG_RUNTIME_DIR` is the last choice, because it is in memory and often small. Raises
    NoPrivateFolder, OSError.
    """
    return _first_private([*_caches(), os.environ.get(RUNTIME, "")])


def _caches() -> list[str]:
    """Return the user's cache folders: the folder that the environment names, and the folder in the
    home directory from the list of users. With sudo, HOME may belong to another user."""
    caches = []
    with contextlib.suppress(RuntimeError):  # neither HOME nor an entry in the list of users
        caches.append(platformdirs.user_cache_dir())
    with contextlib.suppress(KeyError):  # a container may run under a user id without an entry
        caches.append(os.path.join(_listed_home(), _IN_HOME["cache"]))
    return list(dict.fromkeys(caches))


FolderKind = Literal["cache", "config", "data", "state"]
_IN_HOME: dict[FolderKind, str] = {
    "cache": ".cache",
    "config": ".config",
    "data": ".local/share",
    "state": ".local/state",
}


def user_folder(kind: FolderKind) -> Path:
    """Return the folder of gpuconsole for the user's files of this kind. It need not exist.

    The environment names it (`$XDG_CACHE_HOME`, `$HOME`). With sudo this folder may be in the home
    directory of another user, who could put links there. Then the folder is in the home directory
    from the list of users.
    """
    named = platformdirs.PlatformDirs("gpuconsole")
    folder = Path(getattr(named, f"user_{kind}_dir"))
    users = trusted_users()
    if any(
        os.path.lexists(entry) and entry.lstat().st_uid not in users for entry in _way_to(folder)
    ):
        with contextlib.suppress(KeyError):
            return Path(_listed_home(), _IN_HOME[kind], "gpuconsole")
    return folder


def make_private(folder: Path) -> Path:
    """Create `folder` with permissions for the user only, or take the permissions of other users
    away. Return `folder`. Raises OSError, also where another user could replace `folder`."""
    if not (reason := _why_others_write_above(folder)):
        _make(folder)
        reason = why_not_private(folder)
    if reason:
        raise PermissionError(errno.EPERM, reason.removeprefix(f"{folder}: "), str(folder))
    return folder


def _listed_home() -> str:
    """Return the home directory from the list of users. Raises KeyError."""
    return pwd.getpwuid(os.geteuid()).pw_dir


def _first_private(parents: list[str]) -> Path:
    reasons = []
    for parent in filter(os.path.isabs, parents):
        runtime = parent == os.environ.get(RUNTIME)
        folder = Path(parent, "gpuconsole") if runtime else Path(parent, "gpuconsole", "run")
        try:
            if runtime and (reason := _why_open(Path(parent))):
                raise PermissionError(errno.EPERM, reason)
            return make_private(folder)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise NoPrivateFolder(reasons)


def _make(folder: Path) -> None:
    """Create `folder` and the missing folders above it, with permissions for the user only. If
    `folder` exists and belongs to the user, remove the permissions of other users.

    The caller has checked the folders above: this function must not create a folder in a folder of
    another user.
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
    """Say in one line why another user could replace `folder` or create entries in it. Empty if
    only the owner of `folder` and root can do this.

    All folders above count too: everybody who can write the parent of a folder can rename the
    folder. Raises OSError.
    """
    if reason := _why_open(folder):
        return f"{folder}: {reason}"
    return _why_others_write_above(folder)


def _why_others_write_above(folder: Path) -> str:
    """Say in one line why another user could replace a folder above `folder`, or a link on the way
    to `folder`. Empty if no other user can. Ignores folders that do not exist yet. Raises
    OSError."""
    for path in _way_to(folder):
        parent = path.parent
        if os.path.lexists(parent) and (reason := _who_else_writes(parent, path)):
            return f"{folder}: {reason}"
    return ""


def _way_to(folder: Path) -> list[Path]:
    """Return the entries that the system looks up on the way to `folder`, in this order, from the
    root. Links are followed one at a time, so the parent of an entry is never a link. Raises
    OSError for links that form a loop."""
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
    """Say in one line which other users could replace `below`, an entry of `parent`. Empty if no
    other user can. Raises OSError."""
    status, users = parent.lstat(), trusted_users()
    if status.st_uid not in users:
        return f"{parent} belongs to another user"
    is_ours = not os.path.lexists(below) or below.lstat().st_uid in users
    if status.st_mode & stat.S_ISVTX and is_ours:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"everybody can write {parent}"
    if status.st_mode & stat.S_IWGRP and _others_write_by_acl(parent):
        return f"the access control list of {parent} lets others write (setfacl -b {parent})"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"the group {_group_name(status.st_gid)} can write {parent} (chmod g-w {parent})"
    return ""


_ACL, _ACL_ENTRY, _ACL_USER, _ACL_GROUP, _ACL_WRITES = 4, struct.Struct("<HHI"), 2, 8, 2
"""The bytes before the entries of a POSIX access control list, the form of an entry, the tags of
named users and groups, and the bit of a permission to write: linux/posix_acl_xattr.h."""


def _others_write_by_acl(folder: Path) -> bool:
    """Return whether an access control list names a user or a group that may write. The bits of the
    mode do not show them."""
    try:
        entries = _ACL_ENTRY.iter_unpack(os.getxattr(folder, "system.posix_acl_access")[_ACL:])
    except OSError:  # no list, or a file system without lists
        return False
    users = trusted_users()
    return any(
        bits & _ACL_WRITES and (tag == _ACL_GROUP or (tag == _ACL_USER and number not in users))
        for tag, bits, number in entries
    )


def trusted_users() -> tuple[int, ...]:
    """Return the ids of the user and of root. In a user namespace without root (an unprivileged
    container), root's files have the id for unknown users."""
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
    """Say why `folder` does not belong to the user, or gives permissions to other users. Empty if
    only the user has permissions."""
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
    """Return whether the user is the only member of the group. Many systems give each user a group
    of the same name, and let this group write the user's folders. The member list of a group does
    not name the users who have the group as their primary group."""
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
    """Return the first letters of this machine's `boot_id`, which changes at each boot. Empty if
    the system has no `boot_id`."""
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text(encoding="ascii")[:8]
    return ""


class Scratch:
    """A new private folder in `parent`, which is `runtime_folder()` or `data_folder()`. `close`
    removes the new folder and its contents."""

    def __init__(self, parent: Path) -> None:
        """Create the folder and lock it. Raises OSError if no folder can be created."""
        while True:
            self.path = Path(
                tempfile.mkdtemp(prefix=f"{PREFIX}{_machine()}-{os.getpid()}-", dir=parent)
            )
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # another console has just removed the folder
                continue
            # a file system without locks: no console removes the folder then
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._lock)  # another console removed the folder before it was locked

    def close(self) -> None:
        """Remove the folder and release the lock. A second call does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def sweep_scratch() -> None:
    """Remove the user's scratch folders from this machine and boot that no process has locked. Also
    remove other scratch folders that are very old. Ignore folders that cannot be removed."""
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
    """Remove `folder` if it belongs to the user and no process has locked it. Raises OSError,
    RecursionError."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: in use
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
