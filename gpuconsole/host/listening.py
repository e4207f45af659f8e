"""The TCP ports at which processes of this machine listen."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from gpuconsole.model.machine import Listener

LISTENS = "0A"
"""The state of a socket that listens, in /proc/net/tcp."""
PERIOD_S = 5.0


def listening_ports(pids: Collection[int]) -> dict[int, tuple[Listener, ...] | None]:
    """The ports of each process with their addresses; None where this user cannot read them. A
    process that has ended is left out."""
    sockets = _listening_sockets()
    found: dict[int, tuple[Listener, ...] | None] = {}
    for pid in pids:
        try:
            ports = set[Listener | None]()
            for file in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    ports.add(sockets.get(os.readlink(file.path)))
            found[pid] = tuple(sorted(filter(None, ports)))
        except PermissionError:
            found[pid] = None
        except OSError:
            continue
    return found


def _listening_sockets() -> dict[str, Listener]:
    """The port and the address of each socket that listens, by the socket's name among the files
    of a process."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # a kernel without IPv6
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, address, _, state, *_, inode = line.split(None, 10)[:10]
                if state == LISTENS:
                    host, _, port = address.rpartition(":")
                    sockets[f"socket:[{inode}]"] = Listener(int(port, 16), _host(host))
    return sockets


def _host(digits: str) -> str:
    """The host of an address in /proc/net/tcp: words of four bytes in the order of this machine. A
    socket that listens at all addresses listens at the local one too."""
    words = (int(digits[at : at + 8], 16) for at in range(0, len(digits), 8))
    address = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    if address.is_unspecified:
        return "127.0.0.1"
    return f"[{address}]" if address.version == 6 else str(address)


class PortReader:
    """Reads the ports in a thread, so that a kernel that is slow stops no key. The thread ends
    after each reading."""

    def __init__(self) -> None:
        self._ports: Mapping[int, tuple[Listener, ...] | None] = {}
        self._asked: frozenset[int] = frozenset()
        self._asked_s = float("-inf")
        self._thread: threading.Thread | None = None

    def of(self, pids: Collection[int]) -> Mapping[int, tuple[Listener, ...] | None]:
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
