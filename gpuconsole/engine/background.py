"""Background tasks. The failure of a task is reported, never lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import psutil

from gpuconsole.wire.events import AnyEvent, Note, Sample

MEMORY_EVERY = 10


class BackgroundTasks:
    """Holds tasks until they are done, and emits a Note for a task that fails."""

    def __init__(self, emit: Callable[[AnyEvent], None]) -> None:
        self._emit = emit
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = False

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Cancel all tasks. Later failures are not reported."""
        self._cancelled = True
        for task in list(self._tasks):
            task.cancel()

    async def settled(self) -> None:
        """Return once all tasks are done."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._cancelled:
            self._emit(Note(time.monotonic(), f"internal error: {task.exception()!r}", "error"))


async def watch_self(emit: Callable[[AnyEvent], None]) -> None:
    """Report the CPU use of the console once a second, and its memory in every tenth report, until
    cancelled."""
    process = psutil.Process()
    used, since, rounds = time.process_time(), time.monotonic(), 0
    while True:
        await asyncio.sleep(1.0)
        now, spent = time.monotonic(), time.process_time()
        values = {"console.cpu_ratio": (spent - used) / (now - since)}
        if rounds % MEMORY_EVERY == 0:
            values["console.memory_bytes"] = float(process.memory_info().rss)
        emit(Sample(now, "console", values))
        used, since, rounds = spent, now, rounds + 1
