"""A thread of the agent's own that `threading.enumerate` does not show, and that gets no signal."""

from __future__ import annotations

import _thread
import os
import signal
import time
from collections.abc import Callable
from typing import Any

GONE_S = 1.0
"""The longest wait for the end of the thread."""


class BareThread:
    """Runs `function`, which must not raise, in a thread. Raises RuntimeError where the program may have no further thread."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._native_id = 0
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        _thread.start_new_thread(self._run, (function, self._ended))

    def _run(self, function: Callable[[], None], ended: Any) -> None:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # a signal is for a thread of the program, not for this thread
            self._native_id = _thread.get_native_id()
            function()
        finally:
            ended.release()

    @property
    def runs(self) -> bool:
        return self._ended.locked()

    def join(self) -> None:
        """Wait until the thread is gone, because Python 3.12 and newer warn if a process with several threads forks."""
        until = time.monotonic() + GONE_S
        while (self.runs or os.path.exists(f"/proc/self/task/{self._native_id}")) and time.monotonic() < until:
            time.sleep(0.00005)
