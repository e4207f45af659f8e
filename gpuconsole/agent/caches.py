"""Where torch.compile keeps what it has compiled, while a change of ours is the reason that it compiles.

torch's own place is `/tmp/torchinductor_USER`. Another user can make this folder before the user does: torch does not look at its owner, and loads
pickles and compiled code from it. `TORCHINDUCTOR_CACHE_DIR` moves most of the caches. Two stay, in torch 2.8 and newer: precompiled headers
(`torch/_inductor/codecache.py`, `_HEADER_DIR`) and results of small measurements (`torch/_inductor/runtime/caching/implementations.py`,
`_OnDiskCacheImpl._base_dir`).
"""

from __future__ import annotations

import getpass
import importlib
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
"""Variables that name the folders of inductor and of Triton. torch itself puts its own default into the environment, so that a value is not always
the user's choice. Without TRITON, Triton's folder lies in that of inductor."""
HEADERS = "cpp_cache_precompile_headers"
"""The setting of `torch._inductor.config` by which torch compiles headers in advance. They go to torch's own place, whatever INDUCTOR says."""
Undo = Callable[[], None]


class NotPrivate(Exception):
    """torch.compile would write to a folder that another user can write. The message is one line."""


class PrivateCaches:
    """The caches of torch.compile in a private folder, from `begin` until `end`. A folder that the user chose stays."""

    def __init__(self) -> None:
        self._undo: list[Undo] = []

    def begin(self, folder: str) -> None:
        """`folder`: where the caches go; made if it is missing. Raises NotPrivate, and nothing has changed then."""
        default = torchs_own_folder()
        if reason := _why_not_private(folder) or _why_foreign(default):
            raise NotPrivate(reason)
        self.end()
        for name in (INDUCTOR, TRITON):
            value = os.environ.get(name)
            if (value is None and name == INDUCTOR) or (value is not None and _is_in(value, default)):
                self._undo.append(_set_variable(name, os.path.join(folder, name.partition("_")[0].lower())))
        config: Any = importlib.import_module("torch._inductor.config")
        if getattr(config, HEADERS, False):
            setattr(config, HEADERS, False)
            self._undo.append(lambda: setattr(config, HEADERS, True))
        self._undo += keep_measurements_in(folder)

    def end(self) -> None:
        """The caches are where they were before."""
        while self._undo:
            self._undo.pop()()


def torchs_own_folder() -> str:
    """The folder that torch takes by itself: `/tmp/torchinductor_USER`. Empty where the user has no name."""
    with suppress(ImportError, AttributeError):
        return str(importlib.import_module("torch._inductor.runtime.runtime_utils").default_cache_dir())
    with suppress(KeyError, OSError):
        return os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    return ""


def set_variables(folder: str) -> None:
    """Let torch.compile keep its files in `folder`, in this process of ours and in its children. A folder that the user chose stays."""
    os.environ.setdefault(INDUCTOR, os.path.join(folder, "inductor"))
    os.environ.setdefault(f"TORCHINDUCTOR_{HEADERS.upper()}", "0")


def keep_measurements_in(folder: str) -> list[Undo]:
    """Move one more cache of torch into `folder`: the results of small measurements, which torch keeps as pickles. Returns the functions that move the cache
    back."""
    undo: list[Undo] = []
    with suppress(ImportError):
        module = importlib.import_module("torch._inductor.runtime.caching.memoizers")
        for memoizer in vars(module).values():
            if (cache := getattr(memoizer, "_disk_cache", None)) is not None:
                undo.append(_move(cache, folder))
    return undo


def keep_measurements() -> None:
    """Keep the results of small measurements where the variables say, until this process ends."""
    if folder := os.environ.get(INDUCTOR):
        keep_measurements_in(folder)


def _move(cache: Any, folder: str) -> Undo:
    """Move a `_OnDiskCacheImpl`: its folder, and the lock in it."""
    before, lock = cache._cache_dir, cache._flock
    cache._cache_dir = type(before)(folder) / "measured" / before.name
    cache._flock = type(lock)(str(cache._cache_dir / "dir.lock"))

    def put_back() -> None:
        cache._cache_dir, cache._flock = before, lock

    return put_back


def _set_variable(name: str, value: str) -> Undo:
    before = os.environ.get(name)
    os.environ[name] = value

    def put_back() -> None:
        if os.environ.get(name) != value:  # the program's own choice since then
            return
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

    return put_back


def _is_in(path: str, folder: str) -> bool:
    return bool(folder) and (os.path.abspath(path) + os.sep).startswith(os.path.abspath(folder) + os.sep)


def _why_not_private(folder: str) -> str:
    """Why others than the user have permissions in `folder`; empty where none have. The folders above were checked by the console, which made them."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        status = os.stat(folder)
    except OSError as error:
        return f"no private folder for what torch.compile writes: {error.strerror}"
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        return "no private folder for what torch.compile writes: others have permissions in that of the job"
    return ""


def _why_foreign(default: str) -> str:
    """Why torch's own folder is dangerous: another user owns it, and can put code there; empty where it is not. Other versions of torch may keep more there
    than is moved here."""
    with suppress(OSError):
        if os.lstat(default).st_uid not in (0, os.geteuid()):
            return f"{default} belongs to another user, and torch.compile loads code from there: set {INDUCTOR} to a folder of yours"
    return ""
