"""`SessionRecorder` writes the events of a session to a file. `Replay` plays such a file behind the
same `SessionApi`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from gpuconsole.engine.reader import StateReader, write_snapshot
from gpuconsole.host.files import unused
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.session.api import A_RECORDING, Playback, SessionApi, SessionError, View
from gpuconsole.session.jobs import Ports
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import AnyEvent, Note
from gpuconsole.wire.recording import RecordingWriter, RingWriter, as_recorded, read_recording


class SessionRecorder:
    """Begins, continues and ends a recording."""

    def __init__(self) -> None:
        self._writer: RecordingWriter | RingWriter | None = None

    @property
    def path(self) -> str:
        """The file of the recording; empty if there is none."""
        return str(self._writer.path) if self._writer else ""

    def toggle(self, path: Path | None, prelude: Iterable[AnyEvent]) -> Path | None:
        """Begin a recording and return its file, or end the present recording and return None.
        Raises SessionError.

        A recording begins with the events of `prelude`. Without `path` it is a dated file in the
        current folder. A `path` that is a folder becomes a ring.
        """
        if self._writer is not None:
            if problem := self.close():
                raise SessionError(problem)
            return None
        target = path or unused(Path(f"gpuconsole-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"))
        try:
            writer = (
                RingWriter(target) if target.is_dir() else RecordingWriter(target, new=path is None)
            )
            for event in prelude:
                writer.write(as_recorded(event))
            if isinstance(writer, RingWriter) and writer.problem:
                raise OSError(0, writer.problem)
        except OSError as error:
            raise SessionError(f"{target}: cannot be written: {error.strerror}") from None
        self._writer = writer
        return target

    def write(self, event: AnyEvent) -> Note | None:
        """Add an event, if there is a recording. A line for the user, where that fails, and where a
        ring goes on. A file ends then, a ring goes on when there is room again."""
        writer = self._writer
        if isinstance(writer, RingWriter):
            return _write_to_ring(writer, event)
        if writer is None:
            return None
        try:
            writer.write(as_recorded(event))
        except OSError as error:
            self._writer = None
            # a file that is dropped open and cannot be written prints a traceback, from Python 3.13
            # on
            with contextlib.suppress(OSError):
                writer.close()
            return Note(time.monotonic(), _ended(writer.path, error), "error")
        return None

    def close(self) -> str:
        """End the recording, if there is one. When its last events cannot be written, the reason is
        returned; else empty."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except OSError as error:
            assert writer is not None
            return _ended(writer.path, error)
        return ""


def _write_to_ring(ring: RingWriter, event: AnyEvent) -> Note | None:
    before = ring.problem
    ring.write(event)
    if bool(before) == bool(ring.problem):
        return None
    if ring.problem:
        text = f"recording to {ring.path} stopped: {ring.problem}; it goes on when it can"
        return Note(time.monotonic(), text, "error")
    lost = f"; {ring.lost_s:.0f} s are lost" if ring.lost_s else "; nothing is lost"
    return Note(time.monotonic(), f"recording to {ring.path} goes on{lost}", "warning")


def _ended(path: Path, error: OSError) -> str:
    return f"recording to {path} ended: {error.strerror}"


DEMO = resources.files("gpuconsole") / "data" / "demo.jsonl.gz"
"""A real session of `data-starved` on a CPU: a finding, its trial, and the change that was kept."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
PLAY_S = 0.05
MAX_S = 1e9
"""Times of a damaged recording may be further apart than any clock can show."""
SLICE_S = 0.02
"""The longest time for which a recording is folded at once: keys are answered in between."""


class Replay(StateReader, SessionApi):
    """Plays the events of a recording, `speed` times as fast as they happened; 0: all at once.

    The state of a moment is the fold of all events up to that moment, also after a step back: then
    it is folded again from the beginning. The constructor reads the file and raises RecordingError,
    OSError. Every action raises SessionError: nothing runs.
    """

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        super().__init__()
        self.state = SessionState()
        self.player = self
        self._events: list[AnyEvent] = list(read_recording(path))
        self._reached = list(itertools.accumulate((event.t for event in self._events), max))
        """For each event, the time that the recording has reached with it: processes report a
        little out of order."""
        self._length_s = min(MAX_S, self._reached[-1] - self._reached[0])
        self._folded = 0
        """How many events are in `state`."""
        self._speed, self._paused = speed or 1.0, False
        self._begun = (time.monotonic(), 0.0 if speed else self._length_s)
        """A moment of the clock, and the moment of the recording that was shown then."""
        self._seeking = False
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        _, at_s = self._begun
        if at_s >= self._length_s:
            self._folded = self._fold(self.state, self._folded, len(self._events), float("inf"))
        self._stand(at_s)
        self._task = asyncio.create_task(self._play())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def ended(self) -> bool:
        return self._folded >= len(self._events)

    # --- the moment that is shown -----------------------------------------------------------------

    @property
    def _at_s(self) -> float:
        begun, at_s = self._begun
        return (
            at_s
            if self._paused
            else min(self._length_s, at_s + (time.monotonic() - begun) * self._speed)
        )

    def _stand(self, at_s: float) -> None:
        """Go on from this moment."""
        self._begun = time.monotonic(), max(0.0, min(self._length_s, at_s))
        self._moved.set()

    def pause(self) -> None:
        at_s = self._at_s
        if at_s >= self._length_s:
            self._paused = False
            self._stand(0.0)
        else:
            self._paused = not self._paused
            self._stand(at_s)

    def seek(self, at_s: float) -> None:
        self._stand(at_s)

    def change_speed(self, *, faster: bool) -> None:
        at_s = self._at_s
        others = [
            speed for speed in SPEEDS if (speed > self._speed if faster else speed < self._speed)
        ]
        if others:
            self._speed = others[0] if faster else others[-1]
        self._stand(at_s)

    async def _play(self) -> None:
        """Follow the moment that is shown, until the session closes."""
        while True:
            self._moved.clear()
            await self._follow()
            rests = self._paused or (self.ended and self._at_s >= self._length_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), None if rests else PLAY_S)

    async def _follow(self) -> None:
        """Bring the state to the moment that is shown. After a step back the old state stays in
        sight until the other one is complete."""
        at_s = self._at_s
        at_end = at_s >= self._length_s
        target = (
            len(self._events) if at_end else bisect_right(self._reached, self._reached[0] + at_s)
        )
        self._seeking = back = target < self._folded
        state, folded = (SessionState(), 0) if back else (self.state, self._folded)
        while folded < target:
            folded = self._fold(state, folded, target, SLICE_S)
            if not back:
                self._folded = folded
            await asyncio.sleep(0)
        self.state, self._folded, self._seeking = state, folded, False

    def _fold(self, state: SessionState, folded: int, target: int, seconds: float) -> int:
        """Apply the events from `folded` to `target` to `state`, for at most `seconds`; returns how
        many it has then."""
        until = time.perf_counter() + seconds
        while folded < target and time.perf_counter() < until:
            state.apply(self._events[folded])
            folded += 1
        return folded

    # --- reading ----------------------------------------------------------------------------------

    def clock(self) -> float:
        """A recording stands at its newest event."""
        return self.state.now

    def view(self) -> View:
        devices = self.state.devices
        view = self.build_view(
            device=devices[0].id if devices else "cpu",
            probing="",
            recording=True,
            recording_to="",
            ended=self.ended,
        )
        return msgspec.structs.replace(
            view,
            playback=Playback(self._at_s, self._length_s, self._speed, self._paused, self._seeking),
        )

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

    start = stop = end_run = set_knobs = try_change = keep_trial = tune = profile = probe_server = (
        revert
    ) = keep_baseline = _refuse_async
    probe_only_for = cancel_trial = end_tuning = signal_process = toggle_recording = _refuse

    def ports(self, pids: Collection[int]) -> Ports:
        return {}

    def export(self, path: Path | None = None) -> Path:
        return write_snapshot(self.snapshot(), path, "gpuconsole-replay")
