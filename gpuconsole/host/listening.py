"""The TCP ports at which processes of this machine listen."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

LISTENS = "0A"
"""The state of a socket that listens, in /proc/net/tcp."""
PERIOD_S = 5.0


def listening_ports(pids: Collection[int]) -> dict[int, tuple[int, ...] | None]:
    """The ports of each process; None where this user cannot read them. A process that has ended is
    left out."""
    sockets = _listening_sockets()
    found: dict[int, tuple[int, ...] | None] = {}
    for pid in pids:
        try:
            ports = set()
            for file in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    ports.add(sockets.get(os.readlink(file.path), 0))
            found[pid] = tuple(sorted(ports - {0}))
        except PermissionError:
            found[pid] = None
        except OSError:
            continue
    return found


def _listening_sockets() -> dict[str, int]:
    """The port of each socket that listens, by the socket's name among the files of a process."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # a kernel without IPv6
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, address, _, state, *_, inode = line.split(None, 10)[:10]
                if state == LISTENS:
                    sockets[f"socket:[{inode}]"] = int(address.rpartition(":")[2], 16)
    return sockets


class PortReader:
    """Reads the ports in a thread, so that a kernel that is slow stops no key. The thread ends
    after each reading."""

    def __init__(self) -> None:
        self._ports: Mapping[int, tuple[int, ...] | None] = {}
        self._asked: frozenset[int] = frozenset()
        self._asked_s = float("-inf")
        self._thread: threading.Thread | None = None

    def of(self, pids: Collection[int]) -> Mapping[int, tuple[int, ...] | None]:
        """The ports as last read. Asking begins a new reading, once in PERIOD_S seconds, and at
        once for another set of processes."""
        wanted, now = frozenset(pids), time.monotonic()
        is_busy = self._thread is not None and self._thread.is_alive()
        if not is_busy and (wanted != self._asked or now - self._asked_s >= PERIOD_S):
            self._asked, self._asked_s = wanted, now
            self._thread = threading.Thread(target=self._read, args=(wanted,), daemon=True)
            self._thread.start()
        return self._ports

    def _read(self, pids: frozenset[int]) -> None:
        self._ports = listening_ports(pids)
