"""A thread of the agent's own, without a Python frame between two calls of its function:
`sys._current_frames` and `threading.enumerate` do not show it.

A watchdog that names each thread of `sys._current_frames()` by `threading.enumerate()` would end
with KeyError at a thread that `threading` does not know; and a program that joins all threads of
`threading.enumerate()` would never end with one that it does know. So the loop of this thread
consists of C functions only: it waits in `lock.acquire`. While the function runs, the thread holds
the interpreter's lock: it must not release it.
"""

from __future__ import annotations

import _thread
import itertools
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from types import BuiltinFunctionType

GONE_S = 1.0
"""The longest wait for the end of the thread."""


def calls_are_seen() -> bool:
    """Return whether a tool of the program on sys.monitoring sees calls in all threads, as cProfile
    and debuggers do from Python 3.12 on."""
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(
        monitoring.get_tool(tool) is not None and monitoring.get_events(tool) for tool in range(6)
    )


SWITCH_S = 0.000101
"""The interpreter's switch interval while a sample is waited for. A thread that has let go of the
lock waits so long before it asks for the lock again: the stack must be read by then. Python keeps
whole microseconds, and cuts: 100 µs that a program reads and sets again are 99 µs then, 101 µs stay
101 µs."""


class ShortSwitches:
    """A short switch interval of the interpreter, while this thread waits to take a sample. With
    the usual 5 ms the sample would come where the other thread lets go of the interpreter's lock by
    itself, at the next function of torch, and never find lines of Python before that function.
    Where the program sets the interval itself, it is left alone for good."""

    def __init__(self) -> None:
        self._usual_s = 0.0
        self._left_alone = False

    def begin(self) -> None:
        """Make the interval short."""
        self.end()  # the program may have read the short interval, and set it again
        present_s = sys.getswitchinterval()
        self._usual_s = self._usual_s or present_s
        if present_s != self._usual_s or present_s <= SWITCH_S:
            self._left_alone = True
        if not self._left_alone:
            sys.setswitchinterval(SWITCH_S)

    def end(self) -> None:
        """Set the program's own interval again. An interval that the program has set meanwhile
        stays."""
        if not self._left_alone and self._usual_s and sys.getswitchinterval() == SWITCH_S:
            sys.setswitchinterval(self._usual_s)


class Ticker:
    """Calls `tick` in a thread, which gets no signal, until it returns None: it returns the seconds
    until the next call. Raises RuntimeError where the program may have no further thread, and where
    a debugger or gevent has put a function of its own in place of Python's `start_new_thread`."""

    def __init__(self, tick: Callable[[], float | None]) -> None:
        if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
            raise RuntimeError("threads of this program are not Python's own")
        self._function = tick
        self._native_id = 0
        self.runs = True
        self._done = False
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self._pauses: list[float | None] = [0.0]
        woken = map(self._wake.acquire, itertools.repeat(True), iter(self._pauses.pop, None))
        _thread.start_new_thread(deque[None](maxlen=0).extend, (map(self._tick, woken),))

    def _tick(self, over: bool) -> None:
        """Call the function once, unless `run_unseen` has just done so. Python 3.12 and newer call
        `run_unseen` as this method begins, and show no tool what runs there."""
        if self._done:
            self._done = False
        else:
            self.run(over)

    def run_unseen(self, over: bool) -> None:
        """Call the function once, as `_tick` begins: no tool of the program sees this call."""
        self._done = True
        self.run(over)

    def run(self, over: bool) -> None:
        """Call the function once. `over`: the thread is to end."""
        pause_s = None
        try:
            if not self._native_id:
                # a signal is for a thread of the program
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                self._native_id = _thread.get_native_id()
            pause_s = None if over else self._function()
        finally:
            self.runs = pause_s is not None
            self._pauses.append(pause_s)

    def stop(self) -> None:
        """End the thread, and wait until it is gone: Python 3.12 and newer warn if a process with
        several threads forks."""
        if self._wake.locked():
            self._wake.release()
        until = time.monotonic() + GONE_S
        while (
            self.runs or os.path.exists(f"/proc/self/task/{self._native_id}")
        ) and time.monotonic() < until:
            time.sleep(0.00005)


TICK = Ticker._tick.__code__
