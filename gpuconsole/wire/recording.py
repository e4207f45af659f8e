"""Recordings: a file with one JSON line for each event of the wire. The first event is `Hello` with role `recording`."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from gpuconsole import __version__
from gpuconsole.wire.events import AnyEvent, Event, Hello, Processes, decode_event, encode


class RecordingError(ValueError):
    """The file is not a recording; the message is one line."""


class RecordingWriter:
    """Appends each event at once, so that a crash loses at most the last second. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = path.open("wb")
        self._flushed = 0.0
        now = time.monotonic()
        self.write(Hello(t=now, role="recording", pid=os.getpid(), version=__version__, wall_time=time.time()))

    def write(self, event: Event) -> None:
        self._file.write(encode(event) + b"\n")
        now = time.monotonic()
        if now - self._flushed > 1.0:
            self._file.flush()
            self._flushed = now

    def close(self) -> None:
        self._file.close()


def without_command_lines(event: AnyEvent) -> AnyEvent:
    """The event as a recording may hold it: without command lines of processes."""
    if not isinstance(event, Processes):
        return event
    return msgspec.structs.replace(event, processes=[msgspec.structs.replace(one, command="") for one in event.processes])


def read_recording(path: Path) -> Iterator[AnyEvent]:
    """The events of a recording in order. A file whose name ends in `.gz` is compressed. Raises RecordingError, OSError.

    An incomplete last line (after a crash) is ignored. Any other damaged line is an error.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        lines = iter(file)
        number = 0
        for line in lines:
            number += 1
            try:
                event = decode_event(line)
            except msgspec.DecodeError as error:
                if number > 1 and not line.endswith(b"\n"):
                    return
                raise RecordingError(f"{path}: line {number}: not a gpuconsole recording: {error}") from None
            if number == 1 and not (isinstance(event, Hello) and event.role == "recording"):
                raise RecordingError(f"{path}: not a gpuconsole recording (no header)")
            yield event
        if number == 0:
            raise RecordingError(f"{path}: empty, not a gpuconsole recording")
