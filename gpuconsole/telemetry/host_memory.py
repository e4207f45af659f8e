"""Total and used memory of this host, or of the container of this process."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")  # inside a container this is the container's own control group (version 2)


def memory_bytes() -> tuple[int, int]:
    """(used, total) in bytes. Used memory is not available to new programs. In a container the total is the container's limit."""
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
    """Bytes charged to the control group, minus reclaimable file cache. Raises OSError."""
    charged = int((_CGROUP / "memory.current").read_text())
    fields = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    return charged - int(fields.get("inactive_file", "0"))
