"""Signals to processes, and never to a process that was given the same pid later."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil

from gpuconsole.model.machine import Process
from gpuconsole.session.api import SessionError

NOT_SEEN = "it cannot be seen from here (another container or user)"
_SAME_S = 0.02
"""Largest difference of two readings of one start time, in seconds. The kernel counts it in ticks
of 10 ms."""


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 40`: most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def send_signal(process: Process, number: int) -> None:
    """Send signal `number` to a process that the user chose. Only root may signal other users'
    processes.

    Raises SessionError with the reason when the signal cannot be sent.
    """
    name = signal.Signals(number).name
    who = f"{process.pid} {process.name}".strip()
    if process.started <= 0:
        raise SessionError(f"{who}: {process.unseen or NOT_SEEN}: {name} not sent")
    try:
        handle = psutil.Process(process.pid)
        if abs(handle.create_time() - process.started) > _SAME_S:
            raise SessionError(
                f"{who} has ended; its pid belongs to another process now: {name} not sent"
            )
        if os.geteuid() != 0 and handle.uids().real != os.getuid():
            raise SessionError(
                f"{who} belongs to {process.user or 'another user'}: only root may signal it"
            )
        handle.send_signal(number)
    except psutil.NoSuchProcess:
        raise SessionError(f"{who} has already ended") from None
    except psutil.AccessDenied:
        raise SessionError(f"{who}: no permission to send {name}") from None


def kill_group(leader: int) -> None:
    """Kill the process group of `leader`, a child of ours. Nothing happens when the child has been
    reaped: its pid may be reused then."""
    with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
        # raises ChildProcessError unless it is our child still
        os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(leader, signal.SIGKILL)


def kill_leftovers(leader: int) -> None:
    """Kill what is left of the group of `leader`, a child of ours that has been reaped.

    The kernel does not reuse the number of a group that still has members. So a process with the
    pid `leader` proves that the group has ended and that the pid belongs to another program now:
    nothing is killed then.
    """
    if not psutil.pid_exists(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def is_in_kernel(pid: int) -> bool:
    """Whether a thread of the process waits in the kernel where no signal reaches it (state D)."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # that thread has ended
            if path.read_bytes().rpartition(b")")[2].split()[:1] == [b"D"]:
                return True
    return False
