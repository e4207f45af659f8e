"""A tuning session on the run that runs: one at a time, told to everybody who looks, ended when somebody says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from gpuconsole.experiments.tune import Tuner, Tunes
from gpuconsole.model.experiments.certificate import Certificate, Tuning
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.session.api import SessionError
from gpuconsole.wire.events import AnyEvent, TuningUpdate


class TuningSession:
    """Drives a Tuner for the engine."""

    def __init__(self, engine: Tunes, emit: Callable[[AnyEvent], None]) -> None:
        self._engine, self._emit = engine, emit
        self._task: asyncio.Task[Certificate] | None = None

    async def run(self, scenario: str, given: Knobs, budget_s: float) -> Certificate:
        """What was proven; also where it was ended by hand. `given`: with which knobs the run was started. Raises SessionError."""
        self.check_free()
        tuner = Tuner(self._engine, scenario, budget_s, given=given, on_change=lambda certificate: self._tell(certificate, budget_s, True))
        self._tell(tuner.certificate, budget_s, True)
        self._task = task = asyncio.create_task(tuner.run())
        try:
            await asyncio.wait([task])
            if task.cancelled():
                tuner.certificate.stopped = "ended by hand"
            elif (error := task.exception()) is not None:
                tuner.certificate.stopped = str(error)
                raise error
            return tuner.certificate
        finally:
            task.cancel()
            self._task = None
            self._tell(tuner.certificate, budget_s, False)

    def end(self) -> None:
        """Raises SessionError where there is none."""
        if self._task is None:
            raise SessionError("no tuning session is under way")
        if not self._task.cancelling():
            self._task.cancel()

    async def finish(self) -> None:
        """End it, if there is one, before its run does."""
        if self._task is not None:
            self.end()
            await asyncio.wait([self._task])

    def check_free(self) -> None:
        """Raises SessionError where a session is under way, unless it is the session that asks: what it proves must be what is in force."""
        if self._task is not None and asyncio.current_task() is not self._task:
            raise SessionError("a tuning session is under way: x on its screen (t) ends it")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _tell(self, certificate: Certificate, budget_s: float, under_way: bool) -> None:
        whole = msgspec.structs.replace(certificate, attempts=list(certificate.attempts))
        self._emit(TuningUpdate(time.monotonic(), Tuning(whole, budget_s, under_way)))
