"""How many CPU cores this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
GROUP = Path("/proc/self/cgroup")
"""The control groups of this process, a line for each hierarchy: `number:controllers:path`."""


def allowed_cores() -> int:
    """The cores on which the kernel lets this process run: all of this machine, or those of
    `taskset` and of a CPU set."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """The cores that this process may keep busy: the allowed cores, or fewer where a container has
    a CPU limit. A fraction does not count, but one core always does."""
    return max(1, min(allowed_cores(), int(cpu_limit() or allowed_cores())))


def cpu_limit(groups: Path = GROUPS, group: Path = GROUP) -> float | None:
    """CPU seconds per second that the control groups of this process may use (`docker run --cpus`,
    the limit of a pod); None: no limit.

    The least limit of the process's own group and the groups around it. Source: `cpu.max` in
    https://docs.kernel.org/admin-guide/cgroup-v2.html, and `cpu.cfs_quota_us` of version 1 in
    https://docs.kernel.org/scheduler/sched-bwc.html. `groups`: where the control groups are
    mounted. `group`: the list of those of this process.
    """
    limits = [limit for folder in _folders(groups, group) if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _folders(groups: Path, group: Path) -> Iterator[Path]:
    """The folders of the process's groups, from its own to the root. A container sees its own group
    as the root, whatever the path says."""
    try:
        lines = [line.split(":", 2) for line in group.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        lines = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if not controllers or "cpu" in controllers.split(","):
            own = PurePosixPath(path.lstrip("/"))
            # version 2 has no names of controllers here: the root itself
            root = groups / controllers
            yield from (root / part for part in (own, *own.parents) if ".." not in part.parts)


def _limit(folder: Path) -> float | None:
    """The limit of one group, of version 2 or 1; None where it has none."""
    try:
        if (maximum := folder / "cpu.max").is_file():
            quota, period = maximum.read_text(encoding="ascii").split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii").strip()
                for name in ("quota", "period")
            )
        limit = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number: no limit
        return None
    return limit if limit > 0 else None  # version 1 writes -1 where there is no limit
