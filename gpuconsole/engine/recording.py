"""`Recorder` writes the events of a session to a file. `Replay` plays such a file behind the same `SessionApi`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from gpuconsole.engine.reader import StateReader, write_snapshot
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.session.api import SessionApi, SessionError, View
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import AnyEvent
from gpuconsole.wire.recording import RecordingWriter, as_recorded, read_recording


class Recorder:
    """Begins, continues and ends a recording."""

    def __init__(self) -> None:
        self._writer: RecordingWriter | None = None

    @property
    def path(self) -> str:
        """The file of the recording; empty if there is none."""
        return str(self._writer.path) if self._writer else ""

    def toggle(self, path: Path | None, prelude: Iterable[AnyEvent]) -> Path | None:
        """Begin a recording and return its file, or end the present recording and return None. Raises SessionError.

        A recording begins with the events of `prelude`. Without `path` it is a dated file in the current folder.
        """
        if self._writer is not None:
            if problem := self.close():
                raise SessionError(problem)
            return None
        target = path or Path(f"gpuconsole-{time.strftime('%Y%m%d-%H%M%S')}.jsonl")
        try:
            writer = RecordingWriter(target, new=path is None)
            for event in prelude:
                writer.write(as_recorded(event))
        except OSError as error:
            raise SessionError(f"{target}: cannot be written: {error.strerror}") from None
        self._writer = writer
        return target

    def write(self, event: AnyEvent) -> str:
        """Add an event, if there is a recording. When that fails, the recording ends and the reason is returned; else empty."""
        if self._writer is None:
            return ""
        try:
            self._writer.write(as_recorded(event))
        except OSError as error:
            path, self._writer = self._writer.path, None
            return _ended(path, error)
        return ""

    def close(self) -> str:
        """End the recording, if there is one. When its last events cannot be written, the reason is returned; else empty."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except OSError as error:
            assert writer is not None
            return _ended(writer.path, error)
        return ""


def _ended(path: Path, error: OSError) -> str:
    return f"recording to {path} ended: {error.strerror}"


DEMO = resources.files("gpuconsole") / "data" / "demo.jsonl.gz"
"""A real session of `data-starved` on a CPU: a finding, its trial, and the change that was kept."""
A_RECORDING = "this is a recording: nothing runs that could be changed"


class Replay(StateReader, SessionApi):
    """Plays the events of a recording, `speed` times as fast as they happened; 0: all at once.

    The constructor reads the file and raises RecordingError, OSError. Every action raises SessionError: nothing runs.
    """

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        super().__init__()
        self.state = SessionState()
        self._events: list[AnyEvent] = list(read_recording(path))
        self._speed = speed
        self._position = 0
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._speed <= 0:
            self._play_until(float("inf"))
        else:
            self._task = asyncio.create_task(self._play())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def ended(self) -> bool:
        return self._position >= len(self._events)

    async def _play(self) -> None:
        start = time.monotonic()
        first = self._events[0].t
        while not self.ended:
            self._play_until(first + (time.monotonic() - start) * self._speed)
            await asyncio.sleep(0.05)

    def _play_until(self, t: float) -> None:
        while not self.ended and self._events[self._position].t <= t:
            self.state.apply(self._events[self._position])
            self._position += 1

    def clock(self) -> float:
        """A recording stands at its newest event."""
        return self.state.now

    def view(self) -> View:
        devices = self.state.devices
        return self.build_view(device=devices[0].id if devices else "cpu", probing="", recording=True, recording_to="", ended=self.ended)

    def snapshot(self) -> Snapshot:
        return msgspec.structs.replace(super().snapshot(), recording=True)

    def scenarios(self) -> list[Scenario]:
        return []

    async def keep_warm(self, wanted: bool) -> None:
        """Nothing to do: a recording starts no run."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise SessionError(A_RECORDING)

    async def _refuse_async(self, *_: Any, **__: Any) -> NoReturn:
        raise SessionError(A_RECORDING)

    start = stop = end_run = set_knobs = try_change = keep_trial = tune = profile = revert = keep_baseline = _refuse_async
    probe_only_for = cancel_trial = end_tuning = signal_process = toggle_recording = _refuse

    def export(self, path: Path | None = None) -> Path:
        return write_snapshot(self.snapshot(), path, "gpuconsole-replay")
