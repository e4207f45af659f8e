"""Whether the kernel has ended processes of this machine's control group because host memory ran out."""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
KILLED = (-9, 137)
"""The exit codes of a process that SIGKILL ended: as its parent sees it, and as a shell passes it on."""


def oom_kills(group: str | None = None, root: Path = ROOT) -> int | None:
    """How often the kernel's OOM killer has ended a process of this process's control group: `oom_kill` in memory.events of cgroup v2. None: the system
    does not say. `group`: the line of /proc/self/cgroup."""
    with contextlib.suppress(OSError, ValueError):
        line = group if group is not None else Path("/proc/self/cgroup").read_text(encoding="utf-8")
        path = next((entry[3:] for entry in line.splitlines() if entry.startswith("0::")), None)
        if path is None:  # cgroup v1
            return None
        for folder in (root / path.strip("/"), root):  # a container sees its own group as the root
            if (events := folder / "memory.events").is_file():
                counts = dict(entry.split() for entry in events.read_text(encoding="utf-8").splitlines())
                return int(counts["oom_kill"])
    return None


def why_killed(code: int, before: int | None, after: int | None) -> str:
    """Why a job ended with `code`, in one line; empty where the kernel has ended no process in the meantime."""
    if code not in KILLED or before is None or after is None or after <= before:
        return ""
    return f"host memory ran out: the kernel's OOM killer ended {after - before} process{'es' if after - before > 1 else ''} of this control group"
