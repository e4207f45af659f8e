"""The wire in a child: sending never blocks, and the child ends when its parent dies."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from gpuconsole.wire.events import (
    AnyCommand,
    Event,
    MarkedSteps,
    Processes,
    Requests,
    Sample,
    ServerState,
    SourceState,
    Steps,
    decode_command,
    encode,
)

OUTBOX_BYTES = 4 * 1024 * 1024
LAST_RESORT_BYTES = 4 * OUTBOX_BYTES
"""The limit for events that must not be lost, so that the queue for a stopped parent does not use all memory."""
REPLACEABLE = {kind.__struct_config__.tag for kind in (Sample, MarkedSteps, Steps, Requests, ServerState, Processes, SourceState)}
"""Tags of events that a full pipe drops, because later events of the same kind follow."""
_PR_SET_PDEATHSIG = 1
QUIET_S, BETWEEN_S, ASKED = 10, 5, 4
"""A connection to another machine is closed after 10 s without data and 4 unanswered probes, 5 s apart."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the closed socket does it)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux
        return


def keep_alive(connection: socket.socket) -> None:
    """Make the kernel close the connection when the other machine is gone or unreachable."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", QUIET_S), ("TCP_KEEPINTVL", BETWEEN_S), ("TCP_KEEPCNT", ASKED)):
        if hasattr(socket, option):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class ChildChannel:
    """JSON lines over the socket that the parent passed as file descriptor `fd`.

    When the pipe is full, readings and steps are dropped and counted; answers and errors wait in the outbox, up to a limit too.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._outbox = bytearray()
        self._lock = threading.Lock()
        self.dropped = 0

    def send(self, event: Event | dict[str, Any]) -> None:
        """Send `event`. The agent passes its messages as dictionaries with the same keys."""
        line = encode(event) + b"\n"
        tag = event["event"] if isinstance(event, dict) else type(event).__struct_config__.tag
        limit = OUTBOX_BYTES if tag in REPLACEABLE else LAST_RESORT_BYTES
        with self._lock:
            if len(self._outbox) + len(line) > limit:
                self.dropped += 1
                return
            self._outbox += line
            self._push()

    def flush(self) -> bool:
        """Send as many waiting events as fit into the pipe now. Returns whether the outbox is empty."""
        if self._outbox:
            with self._lock:
                self._push()
        return not self._outbox

    def drain(self, timeout_s: float) -> None:
        """Send all waiting events within `timeout_s`. For the last messages of a child."""
        with self._lock:
            self._socket.settimeout(timeout_s)
            try:
                self._socket.sendall(self._outbox)
            except OSError:
                return  # the parent has ended: there is no receiver
            self._outbox.clear()

    def listen(self, on_command: Callable[[AnyCommand], None], on_parent_gone: Callable[[], None]) -> None:
        """Read commands on a separate thread until the parent ends."""
        threading.Thread(target=self._read, args=(on_command, on_parent_gone), name="wire-reader", daemon=True).start()

    def _push(self) -> None:
        while self._outbox:
            try:
                sent = self._socket.send(self._outbox, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:  # the parent has ended; the reader thread ends this process
                self._outbox.clear()
                return
            del self._outbox[:sent]

    def _read(self, on_command: Callable[[AnyCommand], None], on_parent_gone: Callable[[], None]) -> None:
        pending = b""
        while True:
            try:
                chunk = self._socket.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
            if not chunk:
                break
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                on_command(decode_command(line))
        on_parent_gone()


def kill_own_group() -> None:
    """End this process and all its children immediately."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
