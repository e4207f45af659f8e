"""The sampler child's life: started, started again when it ends, replaced when it is stuck or silent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from gpuconsole.processes.child import Child
from gpuconsole.telemetry.source import DRIVER_GONE_EXIT
from gpuconsole.wire.events import AnyEvent, Note, Sample, SourceState

PATIENCE_S = (10.0, 30.0, 120.0)
"""How long a source may be stuck until the sampler is replaced: the first time, the second, and from then on."""
OPENING_S = 60.0
"""The least, while the driver opens: without persistence mode it takes seconds for each GPU."""
SILENT_S = 15.0
"""A sampler that says nothing at all for so long (or six periods) is replaced too: its host readings never hang."""
HEALTHY_S = 60.0
FIRST_WAIT_S, LAST_WAIT_S = 0.5, 60.0
"""Before a sampler that ended is started again: at first soon, then ever later."""
LEAVE_S = 0.5


class Sampling:
    """Keeps one sampler running. `emit` gets its events, and a Note of whatever becomes of it."""

    def __init__(self, interval_s: float, dcgm: str | None, emit: Callable[[AnyEvent], None]) -> None:
        self._arguments = ["--interval", str(interval_s), *(["--dcgm", dcgm] if dcgm else [])]
        self._silent_s = max(SILENT_S, 6 * interval_s)
        self._emit = emit
        self._child: Child | None = None
        self._began = 0.0
        self._heard = 0.0
        self._failures = 0
        self._replaced = 0
        self._stuck: SourceState | None = None
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._start()
        self._in_background(self._listen_for_silence())

    async def close(self) -> None:
        """Kill it and wait a moment. One that sits in the kernel dies when the kernel lets it."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._child is not None and self._child.alive:
            self._child.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._child.exited.wait(), LEAVE_S)

    async def _start(self) -> None:
        def on_event(event: AnyEvent) -> None:
            self._on_event(child, event)

        child = Child("gpuconsole.telemetry.sampler", self._arguments, on_event, lambda code: self._ended(child, code))
        self._child, self._began, self._heard = child, time.monotonic(), time.monotonic()
        await child.start()

    def _on_event(self, child: Child, event: AnyEvent) -> None:
        if child is not self._child:
            return  # one that was replaced has no say any more
        self._heard = time.monotonic()
        if isinstance(event, Sample) and event.device.startswith("gpu"):
            self._stuck = None
        if isinstance(event, SourceState) and self._stuck is not None and event.source == self._stuck.source:
            # Its successor may only just have begun to wait: for the person at the screen it is all one wait.
            waited_s = event.t - self._stuck.t + self._stuck.stuck_s
            self._emit(msgspec.structs.replace(event, stuck_s=waited_s, detail=event.detail or self._stuck.detail))
        else:
            self._emit(event)
        if isinstance(event, SourceState) and event.stuck_s > self._patience_s(event):
            self._stuck = self._stuck or event
            self._replace(f"{event.source} has not answered for {event.stuck_s:.0f} s ({event.detail})")

    def _patience_s(self, state: SourceState) -> float:
        patience_s = PATIENCE_S[min(self._replaced, len(PATIENCE_S) - 1)]
        return max(OPENING_S, patience_s) if state.opening else patience_s

    async def _listen_for_silence(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            silent_s = time.monotonic() - self._heard
            if self._child is not None and self._child.alive and silent_s > self._silent_s:
                self._heard = time.monotonic()
                self._replace(f"the sampler has said nothing for {silent_s:.0f} s")

    def _replace(self, reason: str) -> None:
        """Start another in its place; not beside one that waits in the kernel, since the other would only hang beside it."""
        child = self._child
        if child is None or (child.pid is not None and is_in_kernel(child.pid)):
            return
        self._replaced += 1
        self._say(f"{reason}: starting a new sampler", "warning")
        self._child = None
        child.kill()
        self._start_in(0.0)

    def _ended(self, child: Child, code: int) -> None:
        if self._closing or child is not self._child:
            return
        self._child = None
        words = f": {child.last_words[-1]}" if child.last_words else ""
        if code == DRIVER_GONE_EXIT:
            self._say(f"the driver or its GPUs have changed{words}; reading them anew", "warning")
            self._start_in(1.0)
            return
        if time.monotonic() - self._began > HEALTHY_S:
            self._failures = 0
        wait_s = self._next_wait_s()
        self._say(f"the sampler ended (exit {code}){words}; starting it again in {wait_s:g} s", "error")
        self._start_in(wait_s)

    def _next_wait_s(self) -> float:
        wait_s: float = min(LAST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._failures, 16))
        self._failures += 1
        return wait_s

    def _start_in(self, delay_s: float) -> None:
        async def later() -> None:
            await asyncio.sleep(delay_s)
            try:
                await self._start()
            except OSError as error:  # no process, no descriptor, no memory to be had now
                self._child = None
                wait_s = self._next_wait_s()
                self._say(f"the sampler does not start: {error.strerror}; trying again in {wait_s:g} s", "error")
                self._start_in(wait_s)

        self._in_background(later())

    def _in_background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _say(self, text: str, level: str) -> None:
        self._emit(Note(time.monotonic(), text, level))


def is_in_kernel(pid: int) -> bool:
    """Whether a thread of the process waits where no signal reaches it (state D)."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # that thread has ended
            if path.read_bytes().rpartition(b")")[2].split()[:1] == [b"D"]:
                return True
    return False
