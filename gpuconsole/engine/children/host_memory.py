"""Host memory of a job: whether the kernel has ended processes of this machine's control group
because it ran out, and the private memory of the workers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
KILLED = (-9, 137)
"""The exit codes of a process that SIGKILL ended: as its parent sees it, and as a shell passes it
on."""


def oom_kills(group: str | None = None, root: Path = ROOT) -> int | None:
    """How often the kernel's OOM killer has ended a process of this process's control group:
    `oom_kill` in memory.events of cgroup v2. None: the system does not say. `group`: the line of
    /proc/self/cgroup."""
    with contextlib.suppress(OSError, ValueError):
        line = group if group is not None else Path("/proc/self/cgroup").read_text(encoding="utf-8")
        path = next((entry[3:] for entry in line.splitlines() if entry.startswith("0::")), None)
        if path is None:  # cgroup v1
            return None
        for folder in (root / path.strip("/"), root):  # a container sees its own group as the root
            if (events := folder / "memory.events").is_file():
                counts = dict(
                    entry.split() for entry in events.read_text(encoding="utf-8").splitlines()
                )
                return int(counts["oom_kill"])
    return None


def why_killed(code: int, before: int | None, after: int | None) -> str:
    """Why a job ended with `code`, in one line; empty where the kernel has ended no process in the
    meantime."""
    if code not in KILLED or before is None or after is None or after <= before:
        return ""
    return (
        f"host memory ran out: the kernel's OOM killer ended {after - before}"
        f" process{'es' if after - before > 1 else ''} of this control group"
    )


# --- the private memory of the workers of a job's DataLoader, read by the console -----------------
# A worker is forked: it shares the pages of the training process until one of the two writes to
# them. A read of a Python object writes its reference count, so a worker that reads a list of
# Python objects copies the list page by page. Neither the resident memory nor the anonymous memory
# of a process shows that, because shared pages count in both from the start; /proc/PID/smaps_rollup
# does. To read this file takes 30 µs for each MB of memory, so another thread reads it.

PROC = Path("/proc")
NAME, PRIVATE = "pt_data_worker", "Private_Dirty:"
"""The name that torch gives to the process of a worker, and the line of the file."""
SIGNAL = "loader.private_bytes"
EVERY_S = 1.0
MAX_COST = 0.02
"""Share of a core that the readings may take."""


class WorkersMemory:
    """Reads the memory of the workers of the training process `pid`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._due = 0.0
        self._reading: asyncio.Future[float | None] | None = None

    def take(self) -> dict[str, float]:
        """Return the counter if a reading has ended since the last call, and begin the next reading
        where it is time. Waits for nothing."""
        counters: dict[str, float] = {}
        if self._reading is not None and self._reading.done():
            private = self._reading.result()
            counters = {SIGNAL: private} if private is not None else {}
            self._reading = None
        if self._reading is None and time.monotonic() >= self._due:
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._read)
        return counters

    def _read(self) -> float | None:
        begun = time.thread_time()
        private = [
            found for pid in workers_of(self._pid) if (found := private_bytes(pid)) is not None
        ]
        self._due = time.monotonic() + max(EVERY_S, (time.thread_time() - begun) / MAX_COST)
        return sum(private) if private else None


def workers_of(pid: int) -> list[int]:
    """Return the processes of the workers of a training process; empty where the system does not
    tell."""
    workers = []
    for children in (PROC / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a worker has ended
            for child in children.read_text().split():
                if (PROC / child / "comm").read_text().strip() == NAME:
                    workers.append(int(child))
    return workers


def private_bytes(pid: int) -> float | None:
    """Return the bytes that a process shares with no other; None where the process has ended, or
    the kernel has no such file."""
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith(PRIVATE):
                return int(line.split()[1]) * 1024.0
    return None
