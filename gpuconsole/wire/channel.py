"""The wire in a child: sending never blocks, and the child ends when its parent dies."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from gpuconsole.model.encoding import encode
from gpuconsole.wire.readings import Event

if TYPE_CHECKING:
    import asyncio

    from gpuconsole.wire.events import Command

OUTBOX_BYTES = 4 * 1024 * 1024
LAST_RESORT_BYTES = 4 * OUTBOX_BYTES
"""The limit for events that must not be lost, so that the queue for a stopped parent does not use
all memory."""
REPLACEABLE = {
    "sample", "markedsteps", "steps", "requests", "serverstate", "processes", "sourcestate"
}  # fmt: skip
"""Tags of events that a full pipe drops, because later events of the same kind follow."""
_PR_SET_PDEATHSIG = 1
LAST_MESSAGES_S = 2.0
"""Time limit in seconds for the last messages of a child."""
CLEAN_UP_S = 2.0
"""Seconds between SIGTERM and SIGKILL for the processes of a worker whose console has ended."""
LOOK_EVERY_S = 0.05
_ending = threading.Event()
"""Set when the process group of this process is being ended."""
QUIET_S = 10
BETWEEN_S = 5
ASKED = 4
"""A connection to another machine is closed after 10 s without data and 4 unanswered probes, 5 s
apart."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the closed socket
    does it)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux
        return


def keep_alive(connection: socket.socket) -> None:
    """Make the kernel close the connection when the other machine is gone or unreachable."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", QUIET_S),
        ("TCP_KEEPINTVL", BETWEEN_S),
        ("TCP_KEEPCNT", ASKED),
    ):
        if hasattr(socket, option):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class ChildChannel:
    """JSON lines over the socket that the parent passed as file descriptor `fd`.

    When the pipe is full, readings and steps are dropped and counted; answers and errors wait in
    the outbox, up to a limit too.
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
        """Send as many waiting events as fit into the pipe now. Returns whether the outbox is
        empty."""
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

    def end(self, code: int) -> NoReturn:
        """Send the last messages and end this process with exit code `code`, without Python's own
        clean-up.

        While `kill_own_group` runs in another thread, that function ends this process, after all
        other processes of the group.
        """
        self.drain(LAST_MESSAGES_S)
        sys.stdout.flush()
        if _ending.is_set():
            threading.Event().wait()
        os._exit(code)

    def listen(
        self, on_command: Callable[[Command], None], on_parent_gone: Callable[[], None]
    ) -> None:
        """Read commands on a separate thread until the parent ends."""
        threading.Thread(
            target=self._read, args=(on_command, on_parent_gone), name="wire-reader", daemon=True
        ).start()

    def commands(self, on_parent_gone: Callable[[], None]) -> asyncio.Queue[Command]:
        """The queue of the commands, for the event loop that runs now."""
        import asyncio  # the sampler, a process of few MB, has no event loop

        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Command] = asyncio.Queue()

        def put(command: Command) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(queue.put_nowait, command)

        self.listen(put, on_parent_gone)
        return queue

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

    def _read(
        self, on_command: Callable[[Command], None], on_parent_gone: Callable[[], None]
    ) -> None:
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
                from gpuconsole.wire.events import decode_command  # the sampler needs no command

                on_command(decode_command(line))
        on_parent_gone()


def kill_own_group() -> None:
    """End this process and its process group: SIGTERM to the other members, SIGKILL to all after at
    most CLEAN_UP_S. Does not return.

    A model server needs the SIGTERM to remove its shared memory. For any thread; `ChildChannel.end`
    of the main thread waits for this function.
    """
    _ending.set()
    # the main thread may fail now; the end of the interpreter would end this thread too early
    atexit.register(threading.Event().wait)
    end_others_in_group()
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def end_others_in_group() -> None:
    """Send SIGTERM to the other processes of the group that this process leads, and wait for their
    end, at most CLEAN_UP_S."""
    if os.getpgid(0) != os.getpid():
        return
    until = time.monotonic() + CLEAN_UP_S
    asked: set[int] = set()
    while (others := _others_in_group()) and time.monotonic() < until:
        for pid in others - asked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
        asked |= others
        time.sleep(LOOK_EVERY_S)


def _others_in_group() -> set[int]:
    """The other processes of this process's group. Ended processes that nobody has waited for do
    not count."""
    group, pids = os.getpid(), set[int]()
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if (
                pid != group
                and os.getpgid(pid) == group
                and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            ):
                pids.add(pid)
    return pids
