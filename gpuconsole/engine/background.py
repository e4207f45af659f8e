"""Tasks beside the one that asks for them; one that fails is told of, never lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from gpuconsole.wire.events import AnyEvent, Note


class Background:
    """Holds tasks until they are done."""

    def __init__(self, emit: Callable[[AnyEvent], None]) -> None:
        self._emit = emit
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = False

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        """End them all; what fails from here on is of no interest."""
        self._cancelled = True
        for task in list(self._tasks):
            task.cancel()

    async def settled(self) -> None:
        """Return once those under way are done."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._cancelled:
            self._emit(Note(time.monotonic(), f"internal error: {task.exception()!r}", "error"))


async def wait_out(task: asyncio.Task[None]) -> bool:
    """Until `task` is done, however often the caller is cancelled meanwhile; returns whether it was. What the task raises is raised."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    return cancelled
