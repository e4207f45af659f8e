"""Who a process is: its name, user, command line and container, as far as the operating system lets us see."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import psutil

from gpuconsole.model.machine.process import Process

COMMAND_LIMIT = 4096
"""Characters of a command line that are kept: some are 64 KB long."""
_NAME_LIMIT = 256
_CONTAINER = re.compile(r"(?:docker|containerd|crio|libpod|kubepods|lxc)[^\n]*?([0-9a-f]{12})[0-9a-f]*")


class Owners:
    """Fills in what the driver does not know. What never changes is looked up once for each process."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[psutil.Process, Process]] = {}

    def complete(self, processes: list[Process]) -> list[Process]:
        """The same processes with their owners. One that cannot be seen from here keeps its pid only."""
        owners = {pid: self._look(pid) for pid in {process.pid for process in processes}}
        self._known = {pid: known for pid, known in self._known.items() if pid in owners}
        return [_joined(process, owners[process.pid]) for process in processes]

    def _look(self, pid: int) -> Process | None:
        """Who the process is, and its CPU share since the last look; at the first look there is none yet."""
        known = self._known.get(pid)
        try:
            if known is not None and known[0].is_running():  # is_running also notices a pid that was given to another process
                handle, identity = known
                return msgspec.structs.replace(identity, cpu_ratio=handle.cpu_percent() / 100)
            handle = psutil.Process(pid)
            identity = _identity(handle)
            handle.cpu_percent()  # the first reading of the two that a share needs
        except psutil.Error:  # another pid namespace, or it has just ended
            self._known.pop(pid, None)
            return None
        self._known[pid] = (handle, identity)
        return identity


def _joined(process: Process, owner: Process | None) -> Process:
    """What the driver knows of a process, and what the operating system does."""
    if owner is None:
        return process
    return msgspec.structs.replace(
        owner, device=process.device, kind=process.kind, memory_bytes=process.memory_bytes, sm_ratio=process.sm_ratio
    )


def _identity(handle: psutil.Process) -> Process:
    """What stays the same for a process's life. Raises psutil.Error when it is gone."""
    with handle.oneshot():
        started = handle.create_time()
        facts = handle.as_dict(["name", "username", "uids", "ppid", "cmdline"], ad_value=None)
    uids = facts["uids"]
    return Process(
        pid=handle.pid,
        device="",
        name=_text(facts["name"])[:_NAME_LIMIT],
        user=_text(facts["username"]),
        uid=uids.real if uids else None,
        command=_text(" ".join(facts["cmdline"] or []))[:COMMAND_LIMIT],
        container=container_of(handle.pid),
        parent=facts["ppid"] or 0,
        started=started,
    )


def _text(text: str | None) -> str:
    """As UTF-8 can say it: a process may call itself by any bytes, and those that are no UTF-8 become question marks."""
    return (text or "").encode("utf-8", "replace").decode()


def container_of(pid: int) -> str:
    """The short id of the container that a process is in; empty for none, or when it cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return ""
    found = _CONTAINER.search(text)
    return found[1] if found else ""
