"""Ctrl-C: one rule for all commands.

SIGINT (Ctrl-C), SIGTERM and SIGHUP end a command in good order. A command that keeps results prints what was measured, writes its
files and exits with its usual code: 0, or 1 if the workload failed. A command that has no result to keep exits with code 130.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

INTERRUPTED = 130
"""Exit code of an interrupted command that has no result: 128 + SIGINT, as in a shell."""


def on_interrupt(action: Callable[[], object]) -> None:
    """Call `action` in the running event loop after SIGINT, SIGTERM or SIGHUP."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, action)
