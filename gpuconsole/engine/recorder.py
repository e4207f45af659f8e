"""Writes the events of a session to a recording, while there is one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from gpuconsole.session.api import SessionError
from gpuconsole.wire.events import AnyEvent
from gpuconsole.wire.recording import RecordingWriter, as_recorded


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
            self.close()
            return None
        target = path or Path(f"gpuconsole-{time.strftime('%Y%m%d-%H%M%S')}.jsonl")
        try:
            self._writer = RecordingWriter(target, new=path is None)
        except OSError as error:
            raise SessionError(f"{target}: cannot be written: {error.strerror}") from None
        for event in prelude:
            self._writer.write(as_recorded(event))
        return target

    def write(self, event: AnyEvent) -> str:
        """Add an event, if there is a recording. When that fails, the recording ends and the reason is returned; else empty."""
        if self._writer is None:
            return ""
        try:
            self._writer.write(as_recorded(event))
        except OSError as error:
            path, self._writer = self._writer.path, None
            return f"recording to {path} ended: {error.strerror}"
        return ""

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
