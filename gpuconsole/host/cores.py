"""Find the number of CPU cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
GROUP = Path("/proc/self/cgroup")
"""The file with the control groups of this process. Each line describes one hierarchy:
`number:controllers:path`."""


def allowed_cores() -> int:
    """Return the number of cores on which the kernel lets this process run. `taskset` and CPU sets
    can make this number smaller than the number of cores of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """Return the number of cores that this process may keep busy: the allowed cores, or fewer if a
    container has a CPU limit. The limit is rounded down. The answer is at least 1."""
    return max(1, min(allowed_cores(), int(cpu_limit() or allowed_cores())))


def cpu_limit(groups: Path = GROUPS, group: Path = GROUP) -> float | None:
    """Return the CPU seconds per second that the control groups of this process may use
    (`docker run --cpus`, the limit of a pod). None: no limit.

    The smallest limit of the process's own group and of all groups above it counts. Source:
    `cpu.max` in https://docs.kernel.org/admin-guide/cgroup-v2.html, and `cpu.cfs_quota_us` of
    version 1 in https://docs.kernel.org/scheduler/sched-bwc.html. `groups`: where the control
    groups are mounted. `group`: the file with the control groups of this process.
    """
    limits = [limit for folder in _folders(groups, group) if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _folders(groups: Path, group: Path) -> Iterator[Path]:
    """Yield the folders of the process's groups, from its own group up to the root. In a container,
    the container's own group is mounted as the root, although the path may name other folders."""
    try:
        lines = [line.split(":", 2) for line in group.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        lines = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if not controllers or "cpu" in controllers.split(","):
            own = PurePosixPath(path.lstrip("/"))
            # version 2: `controllers` is empty, so `root` is the mount point itself
            root = groups / controllers
            yield from (root / part for part in (own, *own.parents) if ".." not in part.parts)


def _limit(folder: Path) -> float | None:
    """Return the limit of one group, of version 2 or 1; None if the group has no limit."""
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
