"""Keeps the program from noticing the worker processes of a change, which are children of the program."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
from contextlib import suppress
from typing import Any

# --- what the program would notice ---------------------------------------------------------------------------


def handles_children() -> bool:
    """Whether the program has a handler of SIGCHLD, also one that torch's handler calls."""
    handler: Any = signal.getsignal(signal.SIGCHLD)
    while str(getattr(handler, "__module__", "")).startswith("torch."):
        handler = next((cell.cell_contents for cell in getattr(handler, "__closure__", None) or () if callable(cell.cell_contents)), None)
    return callable(handler)


# --- what the workers keep to themselves ---------------------------------------------------------------------

OF_TORCH = (signal.SIGTERM, signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE)
"""Signals for which torch's workers have handlers of their own."""

PR_SET_PDEATHSIG = 1


def begin_worker(program_own: Any, ready: Any, ends_with_thread: bool, number: int) -> None:
    """Prepare a worker. Runs in place of the program's `worker_init_fn`, and calls it. The worker leaves the process group of the program, so a signal to
    that group does not reach it, and it runs no signal handler of the program. It prints into a file in memory, whose length `printed_by` reads. `ready`: a
    semaphore that is released in the end. `ends_with_thread`: the system kills the worker once the thread that started it has ended."""
    with suppress(OSError):
        os.setpgid(0, 0)
    if ends_with_thread:  # else a signal that ends the whole group of the program leaves the worker for 5 s, with the program's sockets
        with suppress(AttributeError, OSError):  # a system without this function
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    signal.set_wakeup_fd(-1)  # the other end is in the program
    for number_of_signal in signal.valid_signals():
        if number_of_signal not in OF_TORCH and callable(signal.getsignal(number_of_signal)):
            signal.signal(number_of_signal, _handle_nothing)
    hidden = _hide_output()
    try:
        if program_own is not None:
            program_own(number)
    finally:
        with suppress(OSError):  # the program's function may have closed it, or put a file of the program in its place
            if hidden is not None and os.path.samestat(hidden, os.fstat(1)):
                os.lseek(1, 0, os.SEEK_SET)  # what the beginning of a worker prints is no output of the program
                os.ftruncate(1, 0)
        ready.release()


def _handle_nothing(*_: Any) -> None:
    """Take the place of a handler of the program. SIG_IGN would also hold for the programs that the worker starts, and would lose their exit codes."""


def _hide_output() -> os.stat_result | None:
    """Let descriptors 1 and 2 be a file in memory without a name, and let streams write to it at once. None where this is not possible."""
    try:
        file = os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE, 0o600)
    except (OSError, AttributeError):
        return None
    os.dup2(file, 1)
    os.dup2(file, 2)
    if file > 2:  # 1 or 2 where the program has closed its own
        os.close(file)
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        if type(stream) is io.TextIOWrapper:
            with suppress(ValueError, OSError):  # closed, or detached
                stream.reconfigure(write_through=True)
    return os.fstat(1)


def printed_by(pid: int) -> int:
    """The bytes that a worker has printed since the end of `begin_worker`; 0 where the output is not hidden."""
    hidden, own = _of_descriptor(f"/proc/{pid}/fd/1"), _of_descriptor(1)
    return hidden.st_size if hidden is not None and (own is None or not os.path.samestat(hidden, own)) else 0


def _of_descriptor(file: str | int) -> os.stat_result | None:
    """Return the status of an open file; None where the descriptor is closed."""
    try:
        return os.stat(file)
    except OSError:
        return None
