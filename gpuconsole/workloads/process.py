"""What the processes of workloads share: the user's cache folder, faster imports of large packages,
and where torch.compile keeps what it has compiled.

torch's own place is `/tmp/torchinductor_USER`. Another user can make this folder before the user
does: torch does not look at its owner, and loads pickles and compiled code from it.
`TORCHINDUCTOR_CACHE_DIR` moves most of the caches. Two stay, in torch 2.8 and newer: precompiled
headers (`torch/_inductor/codecache.py`, `_HEADER_DIR`) and results of small measurements
(`torch/_inductor/runtime/caching/implementations.py`, `_OnDiskCacheImpl._base_dir`).
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def cache_folder() -> Path:
    """Return the user's cache folder for gpuconsole (`$XDG_CACHE_HOME/gpuconsole` where that
    variable is set). Create the folder if it is missing. Raises OSError."""
    from gpuconsole.host.folders import make_private, user_folder

    return make_private(user_folder("cache"))


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collection in this block, for imports.

    An import creates many objects that stay, and each full collection scans all of them. Without
    collections, `import torch, torch._dynamo` takes 1.7 s of CPU time in place of 2.0 s (torch
    2.13, medians of three on an AMD EPYC).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- the caches of torch.compile ------------------------------------------------------------------

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""The variable that names the folder of inductor; Triton's folder lies in it."""
HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
"""The variable by which torch compiles headers in advance. They go to torch's own place, whatever
INDUCTOR says."""


def set_variables(folder: str) -> None:
    """Let torch.compile keep its files in `folder`, in this process of ours and in its children. A
    folder that the user chose stays."""
    os.environ.setdefault(INDUCTOR, os.path.join(folder, "inductor"))
    os.environ.setdefault(HEADERS, "0")


def keep_measurements() -> None:
    """Keep the results of small measurements, which torch keeps as pickles, where the variables
    say."""
    folder = os.environ.get(INDUCTOR)
    if not folder:
        return
    with suppress(ImportError):
        module = importlib.import_module("torch._inductor.runtime.caching.memoizers")
        for memoizer in vars(module).values():
            if (cache := getattr(memoizer, "_disk_cache", None)) is not None:
                _move(cache, folder)


def _move(cache: Any, folder: str) -> None:
    """Move a `_OnDiskCacheImpl`: its folder, and the lock in it."""
    cache._cache_dir = type(cache._cache_dir)(folder) / "measured" / cache._cache_dir.name
    cache._flock = type(cache._flock)(str(cache._cache_dir / "dir.lock"))
