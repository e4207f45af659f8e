"""A signal to a process, and to no other that has been given its pid since."""

from __future__ import annotations

import os
import signal

import psutil

from gpuconsole.model.machine.process import Process
from gpuconsole.session.api import SessionError

_SAME_S = 0.02
"""Start times are read in clock ticks of 10 ms."""


def send_signal(process: Process, number: int) -> None:
    """Raises SessionError with the reason when it cannot be done. Only one's own processes, unless one is root."""
    name = signal.Signals(number).name
    who = f"{process.pid} {process.name}".strip()
    if process.started <= 0:
        raise SessionError(f"{who}: it cannot be seen from here (another container or user): {name} not sent")
    try:
        handle = psutil.Process(process.pid)
        if abs(handle.create_time() - process.started) > _SAME_S:
            raise SessionError(f"{who} has ended; its pid belongs to another process now: {name} not sent")
        if os.geteuid() != 0 and handle.uids().real != os.getuid():
            raise SessionError(f"{who} belongs to {process.user or 'another user'}: only root may signal it")
        handle.send_signal(number)
    except psutil.NoSuchProcess:
        raise SessionError(f"{who} has already ended") from None
    except psutil.AccessDenied:
        raise SessionError(f"{who}: no permission to send {name}") from None
