"""How much memory this host, or the container that we are in, has and uses."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")  # a container sees its own control group here (version 2)


def memory_bytes() -> tuple[int, int]:
    """(used, total). Used is what new programs cannot get; a container's limit counts as its total."""
    machine = psutil.virtual_memory()
    limit = _cgroup_limit_bytes()
    if limit is None or limit >= machine.total:
        return machine.total - machine.available, machine.total
    return _cgroup_used_bytes(), limit


def _cgroup_limit_bytes() -> int | None:
    try:
        text = (_CGROUP / "memory.max").read_text()
    except OSError:  # no such control group: no limit
        return None
    return None if text.strip() == "max" else int(text)


def _cgroup_used_bytes() -> int:
    """What is charged to the control group, less the file cache that the kernel would give back. Raises OSError."""
    charged = int((_CGROUP / "memory.current").read_text())
    fields = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    return charged - int(fields.get("inactive_file", "0"))
