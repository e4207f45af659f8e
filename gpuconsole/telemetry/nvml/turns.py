"""Works through readings one after the other, so that one slow reading does not hold up the
others."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

Reading = Callable[[], None]
MAX_LATE = 2


def take_turns(readings: Iterable[Reading], limit_s: float) -> None:
    """Return when each reading has ended, or has taken longer than `limit_s` seconds.

    One thread makes all readings. A reading that takes longer keeps the thread, and goes on in the
    background; a new thread makes the readings behind it. After MAX_LATE of them, each reading gets
    a thread of its own, so that many slow readings take as long as one.
    """
    waiting, late = deque(readings), 0
    while waiting and late < MAX_LATE:
        queue = _begun(waiting)
        waiting = queue.left_after(limit_s)
        late += 1
    queues = [_begun(deque([reading])) for reading in waiting]
    until = time.monotonic() + limit_s
    for queue in queues:
        queue.left_after(until - time.monotonic())


def _begun(readings: deque[Reading]) -> _Queue:
    queue = _Queue(readings)
    threading.Thread(target=queue.work, name="readings", daemon=True).start()
    return queue


class _Queue:
    """Readings for one thread."""

    def __init__(self, readings: deque[Reading]) -> None:
        self._waiting = readings
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def work(self) -> None:
        while (reading := self._next()) is not None:
            reading()
        self._ended.set()

    def _next(self) -> Reading | None:
        with self._lock:
            self._began = time.monotonic()
            return self._waiting.popleft() if self._waiting else None

    def left_after(self, limit_s: float) -> deque[Reading]:
        """Wait until all readings have ended, and return nothing; or until one takes longer than
        `limit_s`, and return those behind it. This thread does not begin them any more."""
        while not self._ended.wait(max(0.001, self._began + limit_s - time.monotonic())):
            with self._lock:
                if self._ended.is_set():
                    break
                if time.monotonic() - self._began >= limit_s:
                    left, self._waiting = self._waiting, deque()
                    return left
        return deque()
