"""The connection of a process of the job to the console: a socket that the training thread serves
between two steps.

There is no thread: Python 3.12 and newer warn when a process with threads forks, and a program may
count its threads.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
from collections.abc import Callable
from typing import Any

from ..descriptors import identity, is_same, make_immortal
from ..protocol import Message, command_of, encode

OUTBOX_BYTES = 4 * 1024 * 1024
"""Above this size of the outbox, segments are dropped and counted."""
LAST_RESORT_BYTES = 4 * OUTBOX_BYTES
CONNECT_S = 2.0
REPLACEABLE = ("segments",)
DOORBELL = "doorbell"
"""A file of 8 bytes with a counter. The console raises the counter after it has sent a command. A
look at the mapped file takes no system call. A read of the socket takes 0.1 ms, because the code of
the read is in no cache between two steps."""


class Connection:
    """JSON lines over the Unix socket `path`. Sending never blocks. Raises OSError where the
    console does not answer."""

    def __init__(self, path: str) -> None:
        self.dropped = 0
        self.gone = False
        self.lost = False
        """Whether the program has closed the descriptor of the socket."""
        self._outbox = bytearray()
        self._pending = b""
        self._doorbell, self._last_count = (
            _mapped(os.path.join(os.path.dirname(path), DOORBELL)),
            b"",
        )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(CONNECT_S)
            self._connect(path)
            self._socket.setblocking(False)
            self._identity = identity(self._socket.fileno())
        except OSError:
            self._socket.close()
            raise

    def _connect(self, path: str) -> None:
        """Connect by way of the folder's descriptor: the address of a Unix socket has at most 107
        bytes."""
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._socket.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        finally:
            os.close(folder)

    def send(self, message: Message) -> None:
        """Queue `message`, and send as much as the pipe has room for."""
        line = encode(message) + b"\n"
        if len(self._outbox) + len(line) > (
            OUTBOX_BYTES if message["event"] in REPLACEABLE else LAST_RESORT_BYTES
        ):
            self.dropped += 1
            return
        self._outbox += line
        self.flush()

    @property
    def waiting(self) -> bool:
        """Whether messages wait for room in the pipe."""
        return bool(self._outbox)

    def flush(self) -> bool:
        """Send what waits, as far as the pipe has room. Returns whether nothing waits any
        longer."""
        if self._outbox and self.is_ours():
            try:
                while self._outbox:
                    del self._outbox[
                        : self._socket.send(self._outbox, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    ]
            except BlockingIOError:
                return False
            except OSError:
                self.gone = True
        return not self._outbox

    def may_have_commands(self) -> bool:
        """Whether the console may have sent commands since the last call: the counter of the
        doorbell has changed, or there is no doorbell."""
        if self._doorbell is None:
            return True
        before, self._last_count = self._last_count, self._doorbell[:]
        return self._last_count != before

    def receive(self, put: Callable[[Any], None]) -> None:
        """Pass on the commands that have come. Sets `gone` where the console has closed the
        connection."""
        if not self.is_ours():
            return
        try:
            chunk = self._socket.recv(65536, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.gone = True
            return
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        for line in lines:
            put(command_of(json.loads(line)))

    def drain(self, timeout_s: float) -> None:
        """Send all that waits within `timeout_s`. For the last messages of a process."""
        if self._outbox and self.is_ours():
            try:
                self._socket.settimeout(timeout_s)
                self._socket.sendall(self._outbox, socket.MSG_NOSIGNAL)
            except OSError:
                self.gone = True
            self._outbox.clear()

    def close(self) -> None:
        """Close the socket and the doorbell, where they are still ours."""
        if self._socket.fileno() >= 0 and self._still_ours():
            self._socket.close()
            if self._doorbell is not None:
                self._doorbell.close()
        self.gone, self._doorbell = True, None

    def is_ours(self) -> bool:
        """Whether the descriptor is still our socket. A program may close all descriptors, and
        another file may have the number then."""
        return not self.gone and self._still_ours()

    def _still_ours(self) -> bool:
        if is_same(self._socket.fileno(), self._identity):
            return True
        self.gone = self.lost = True
        self._socket.detach()
        make_immortal(self._doorbell)  # mmap has a descriptor too, and closes it where it is freed
        return False


def _mapped(path: str) -> mmap.mmap | None:
    """A small file in memory; None where there is no such file."""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
