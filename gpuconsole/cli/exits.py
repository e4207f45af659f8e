"""Exit codes, the same for every command, and Ctrl-C.

SIGINT (Ctrl-C), SIGTERM and SIGHUP end a command in good order: the command prints what was
measured, writes its files, and exits with 128 and the number of the signal, as a program that a
shell has ended. With a command of the user's own after `--` the exit code is that of the job.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

OK = 0
FAILED = 1
"""The workload failed, or what the command checks does not hold."""
USAGE = 2
"""Bad usage. Nothing was started."""
UNDECIDED = 3
"""A gate cannot tell: the noise is too large for the runs that it has."""
BROKEN = 70
"""gpuconsole itself has failed, with a traceback. A gate calls this undecided. EX_SOFTWARE."""
INTERRUPTED = 128 + signal.SIGINT
NOT_FOUND = 127
NOT_EXECUTABLE = 126
"""Exit codes of a shell for a command of the user's own that cannot be run."""
CODES = {
    OK: "ok",
    FAILED: "failed: the run, or what the command checks",
    USAGE: "bad usage: one line says what is wrong, and nothing was started",
    UNDECIDED: "undecided: the noise is too large to tell (compare --fail-below)",
    BROKEN: "an error of gpuconsole itself, with a traceback: nothing is decided",
    INTERRUPTED: "interrupted (Ctrl-C): what was measured is printed and written",
}
"""The meaning of each code, for the help. docs/commands.md explains them."""

_received: list[signal.Signals] = []


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Until a command takes Ctrl-C over, it ends the process at once with INTERRUPTED: nothing has
    a result yet, and children end with this process. An exception in the middle of an import would
    print a traceback, and it can crash msgspec while it builds its decoders."""
    # for example ignored: a shell starts background jobs so
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def on_interrupt(action: Callable[[], object]) -> None:
    """Call `action` in the running event loop after SIGINT, SIGTERM or SIGHUP."""
    import asyncio  # the console's first picture does not wait for it

    loop = asyncio.get_running_loop()

    def received(number: signal.Signals) -> None:
        _received.append(number)
        action()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, received, number)


def exit_code(failed: object = False) -> int:
    """The exit code of a command that has ended: that of the signal that interrupted it, else
    FAILED or OK."""
    if _received:
        return 128 + _received[0]
    return FAILED if failed else OK
