"""Who a process is: its name, user, command line and container, as far as the operating system lets us see."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import psutil

from gpuconsole.model.process import Process

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
        found = [self._complete(process) for process in processes]
        alive = {process.pid for process in processes}
        self._known = {pid: known for pid, known in self._known.items() if pid in alive}
        return found

    def _complete(self, process: Process) -> Process:
        known = self._known.get(process.pid)
        if known is None or not known[0].is_running():  # is_running also notices a pid that was given to another process
            self._known.pop(process.pid, None)
            try:
                handle = psutil.Process(process.pid)
                known = self._known[process.pid] = (handle, _identity(handle))
            except psutil.Error:  # another pid namespace, or it has just ended
                return process
        handle, identity = known
        try:
            busy = handle.cpu_percent() / 100
        except psutil.Error:
            return process
        return msgspec.structs.replace(
            identity, device=process.device, kind=process.kind, memory_bytes=process.memory_bytes, sm_ratio=process.sm_ratio, cpu_ratio=busy
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
        name=(facts["name"] or "")[:_NAME_LIMIT],
        user=facts["username"] or "",
        uid=uids.real if uids else None,
        command=" ".join(facts["cmdline"] or [])[:COMMAND_LIMIT],
        container=container_of(handle.pid),
        parent=facts["ppid"] or 0,
        started=started,
    )


def container_of(pid: int) -> str:
    """The short id of the container that a process is in; empty for none, or when it cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return ""
    found = _CONTAINER.search(text)
    return found[1] if found else ""
