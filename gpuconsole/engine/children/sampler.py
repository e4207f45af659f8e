"""Supervises the sampler child: starts it, starts it again when it ends, and replaces it when it
hangs or sends nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine

import msgspec

from gpuconsole.engine.children.child import Child
from gpuconsole.engine.children.early import SAMPLER, EarlyChild, sampler_arguments
from gpuconsole.engine.children.environment import dcgm_environment
from gpuconsole.engine.children.signals import is_in_kernel
from gpuconsole.session.machine import is_gpu_source
from gpuconsole.telemetry.source import DRIVER_GONE_EXIT
from gpuconsole.wire.events import AnyEvent, Sample, SamplerEnded, SourceState

PATIENCE_S = (10.0, 30.0, 120.0)
"""Seconds for which a source may hang before the sampler is replaced: the first time, the second
time, and later."""
OPENING_S = 60.0
"""The minimum of PATIENCE_S while the driver opens: without persistence mode this takes seconds for
each GPU."""
SILENT_S = 15.0
"""Seconds (at least six periods) without any event, after which the sampler is replaced: its host
readings never hang."""
HEALTHY_S = 60.0
"""A sampler that ran for so long has not failed at its start: the next wait is the first wait
again."""
FIRST_WAIT_S = 0.5
LAST_WAIT_S = 60.0
"""Seconds before a sampler that ended is started again. The wait doubles with each failure."""
LEAVE_S = 0.5
"""Seconds that `close` waits for a killed sampler."""


class SamplerSupervisor:
    """Keeps one sampler running. `emit` receives the sampler's events, and SamplerEnded when the
    sampler ends or is replaced."""

    def __init__(
        self,
        interval_s: float,
        dcgm: str | None,
        emit: Callable[[AnyEvent], None],
        early: EarlyChild | None = None,
    ) -> None:
        """`early`: the first sampler, which runs already."""
        self._arguments, self._env = sampler_arguments(interval_s), dcgm_environment(dcgm)
        self._early = early
        self._silent_s = max(SILENT_S, 6 * interval_s)
        self._emit = emit
        self._child: Child | None = None
        self._began = 0.0
        self._last_event_t = 0.0
        self._failures = 0
        self._replaced = 0
        self._stuck: SourceState | None = None
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._start()
        self._in_background(self._watch_silence())

    async def close(self) -> None:
        """Kill the sampler and wait a moment. A sampler that waits in the kernel ends when that
        call returns."""
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

        child = Child(
            SAMPLER,
            self._arguments,
            on_event,
            lambda code: self._ended(child, code),
            self._env,
            self._early,
        )
        self._early = None
        self._child, self._began, self._last_event_t = child, time.monotonic(), time.monotonic()
        await child.start()

    def _on_event(self, child: Child, event: AnyEvent) -> None:
        if child is not self._child:
            return  # of a sampler that was replaced
        self._last_event_t = time.monotonic()
        if isinstance(event, Sample) and event.device.startswith("gpu"):
            self._stuck = None
        if (
            isinstance(event, SourceState)
            and self._stuck is not None
            and event.source == self._stuck.source
        ):
            # The new sampler has begun to wait only now. For the user it is one wait, so the times
            # are added.
            waited_s = event.t - self._stuck.t + self._stuck.stuck_s
            self._emit(
                msgspec.structs.replace(
                    event, stuck_s=waited_s, detail=event.detail or self._stuck.detail
                )
            )
        else:
            self._emit(event)
        if (
            isinstance(event, SourceState)
            and not is_gpu_source(event.source)  # the other GPUs are read
            and event.stuck_s > self._patience_s(event)
        ):
            self._stuck = self._stuck or event
            self._replace(
                f"{event.source} has not answered for {event.stuck_s:.0f} s ({event.detail})"
            )

    def _patience_s(self, state: SourceState) -> float:
        patience_s = PATIENCE_S[min(self._replaced, len(PATIENCE_S) - 1)]
        return max(OPENING_S, patience_s) if state.opening else patience_s

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            silent_s = time.monotonic() - self._last_event_t
            if self._child is not None and self._child.alive and silent_s > self._silent_s:
                self._last_event_t = time.monotonic()
                self._replace(f"the sampler has sent nothing for {silent_s:.0f} s")

    def _replace(self, reason: str) -> None:
        """Start a new sampler. Not while the old one waits in the kernel: the new one would wait in
        the same call."""
        child = self._child
        if child is None or (child.pid is not None and is_in_kernel(child.pid)):
            return
        self._replaced += 1
        self._report(f"{reason}: starting a new sampler", "warning")
        self._child = None
        child.kill()
        self._start_in(0.0)

    def _ended(self, child: Child, code: int) -> None:
        if self._closing or child is not self._child:
            return
        self._child = None
        last_line = f": {child.last_words[-1]}" if child.last_words else ""
        if code == DRIVER_GONE_EXIT:
            self._report(
                f"the driver or its GPUs have changed{last_line}; reading them again", "warning"
            )
            self._start_in(1.0)
            return
        if time.monotonic() - self._began > HEALTHY_S:
            self._failures = 0
        wait_s = self._next_wait_s()
        self._report(
            f"the sampler ended (exit {code}){last_line}; starting it again in {wait_s:g} s",
            "error",
        )
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
            except OSError as error:  # no process, descriptor or memory is available now
                self._child = None
                wait_s = self._next_wait_s()
                self._report(
                    f"the sampler does not start: {error.strerror}; trying again in {wait_s:g} s",
                    "error",
                )
                self._start_in(wait_s)

        self._in_background(later())

    def _in_background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, text: str, level: str) -> None:
        self._emit(SamplerEnded(time.monotonic(), text, level))
