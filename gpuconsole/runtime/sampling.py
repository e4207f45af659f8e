"""The sampler child's life: started, started again when it ends, replaced when it is stuck."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from gpuconsole.runtime.child import Child
from gpuconsole.wire.events import AnyEvent, Note, SourceState

RESTARTS = 5
"""Times that a sampler which ends by itself is started again, in a row."""
PATIENCE_S = (10.0, 30.0, 120.0)
"""How long a source may be stuck until the sampler is replaced: the first time, the second, and from then on."""
HEALTHY_S = 60.0
DRIVER_GONE_EXIT = 75  # the sampler asks for a successor: the driver was unloaded or replaced, or the number of GPUs has changed
LEAVE_S = 0.5


class Sampling:
    """Keeps one sampler running. `emit` gets its events and what there is to say about it."""

    def __init__(self, arguments: list[str], emit: Callable[[AnyEvent], None]) -> None:
        self._arguments = arguments
        self._emit = emit
        self._child: Child | None = None
        self._began = 0.0
        self._failures = 0
        self._replaced = 0
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        child = Child(
            "gpuconsole.telemetry.sampler",
            self._arguments,
            lambda event: self._on_event(child, event),
            lambda code: self._ended(child, code),
        )
        self._child, self._began = child, time.monotonic()
        await child.start()

    async def close(self) -> None:
        """Kill it and wait a moment. One that sits in the kernel dies when the kernel lets it."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._child is not None and self._child.alive:
            self._child.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._child.exited.wait(), LEAVE_S)

    def _on_event(self, child: Child, event: AnyEvent) -> None:
        if child is not self._child:
            return  # one that was replaced has no say any more
        self._emit(event)
        if isinstance(event, SourceState) and event.stuck_s > PATIENCE_S[min(self._replaced, len(PATIENCE_S) - 1)]:
            self._replace(event)

    def _replace(self, state: SourceState) -> None:
        self._replaced += 1
        self._say(f"{state.source} has not answered for {state.stuck_s:.0f} s ({state.detail}): starting a new sampler", "warning")
        if self._child is not None:
            self._child.kill()
        self._start_soon(0.0)

    def _ended(self, child: Child, code: int) -> None:
        if self._closing or child is not self._child:
            return
        word = next(reversed(child.last_words), "")
        if code == DRIVER_GONE_EXIT:
            self._say(f"the NVIDIA driver went away ({word}): looking for it again", "warning")
            self._start_soon(1.0)
            return
        if time.monotonic() - self._began > HEALTHY_S:
            self._failures = 0
        self._failures += 1
        again = self._failures <= RESTARTS
        self._say(f"the sampler ended (exit {code}): {word}{'' if again else '; no more live figures'}", "error")
        if again:
            self._start_soon(min(10.0, 0.5 * 2**self._failures))

    def _start_soon(self, delay_s: float) -> None:
        async def later() -> None:
            await asyncio.sleep(delay_s)
            await self.start()

        task = asyncio.create_task(later())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _say(self, text: str, level: str) -> None:
        self._emit(Note(time.monotonic(), text, level))
