"""Another user of the same machine, and what such a user could reach of the processes that we leave
behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a second user needs root")


def as_nobody(program: str, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a Python program as another user, in that user's own folder and environment."""
    return subprocess.run(
        ["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", _python(), "-I", "-c", program, *words],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


def _python() -> str:
    """A Python that the other user can start: the tests' own one may lie in root's home."""
    for candidate in ("/usr/bin/python3", "/usr/local/bin/python3", sys.executable):
        if os.path.exists(candidate) and all(
            parent.stat().st_mode & stat.S_IXOTH for parent in Path(candidate).resolve().parents
        ):
            return candidate
    pytest.skip("there is no Python that another user can start")


PLANT = """
import os, sys
target = sys.argv[1]
try:
    os.makedirs(target, exist_ok=True)
    with open(os.path.join(target, "sitecustomize.py"), "w") as file:
        file.write(f"open({sys.argv[2]!r}, 'a').write('ran')")
    os.chmod(target, 0o755)
    print("planted")
except OSError as error:
    print(error)
"""


def ours_in(process: psutil.Process) -> dict[str, str]:
    """The paths of ours in a process that goes on without the console: in its environment, its
    command line and its open files."""
    environ, found = process.environ(), {}
    for name, value in environ.items():
        if name.startswith("GPUCONSOLE") and value.startswith("/"):
            found[name] = value
    own = environ.get("GPUCONSOLE_AGENT", "")
    found |= {
        f"PYTHONPATH[{n}]": path
        for n, path in enumerate(environ.get("PYTHONPATH", "").split(os.pathsep))
        if own and path == own
    }
    found |= {
        f"argv[{n}]": word
        for n, word in enumerate(process.cmdline())
        if word.startswith("/") and "gpuconsole" in word
    }
    found |= {
        f"file {n}": file.path
        for n, file in enumerate(process.open_files())
        if "gpuconsole" in file.path
    }
    return found


def why_not_safe(path: str) -> str:
    """Which other user could put something at `path`, now or after it was removed; empty where
    nobody can. Every folder above it counts."""
    here = Path(path)
    if here.exists() and here.lstat().st_uid not in (0, os.geteuid()):
        return f"{here} belongs to {here.lstat().st_uid}"
    below_exists = here.exists()
    for parent in here.parents:
        if not parent.exists():
            below_exists = False
            continue
        status = parent.stat()
        if status.st_uid not in (0, os.geteuid()):
            return f"{parent} belongs to {status.st_uid}"
        if status.st_mode & (stat.S_IWOTH | stat.S_IWGRP) and not (
            below_exists and status.st_mode & stat.S_ISVTX
        ):
            return (
                f"others can create entries in {parent} (mode {stat.S_IMODE(status.st_mode):04o})"
            )
        below_exists = True
    return ""
