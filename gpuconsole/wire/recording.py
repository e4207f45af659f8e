"""Recordings: a file with one JSON line for each event of the wire. The first event is `Hello` with role `recording`."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from gpuconsole import __version__
from gpuconsole.model.files import open_own
from gpuconsole.model.machine import Process
from gpuconsole.wire.events import AnyEvent, Event, Hello, Processes, decode_event, encode

MODE = 0o600
"""Only the user may read a recording: it has more of the machine and of the job in it than a snapshot."""
MOST_LINE_BYTES = 16 * 2**20
MOST_BYTES = 2**30
"""The longest line and the largest recording that are read, without compression. A day of training with ten steps a second has about 0.4 GB."""
MOST_RATIO, LEAST_BYTES = 40, 32 * 2**20
"""A compressed recording that unpacks to more than 40 times its size, and to more than 32 MiB, is refused. Recordings shrink to about a
fourteenth."""
ANOTHER_USER = "another user"


class RecordingError(ValueError):
    """The file is not a recording; the message is one line."""


class RecordingWriter:
    """Appends each event at once, so that a crash loses at most the last second. Raises OSError."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """`new`: the file must not exist, not even as a link. For a name that another user could guess."""
        self.path = path
        self._file: IO[bytes] = os.fdopen(open_own(path, new=new), "wb")
        with contextlib.suppress(OSError):  # a pipe, for example
            os.fchmod(self._file.fileno(), MODE)
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


def as_recorded(event: AnyEvent) -> AnyEvent:
    """The event as a recording may hold it: without command lines of processes, and without the names of other users, who did not agree to that."""
    if not isinstance(event, Processes):
        return event
    return msgspec.structs.replace(event, processes=[_as_recorded(process) for process in event.processes])


def _as_recorded(process: Process) -> Process:
    if process.uid in (None, os.geteuid()):
        return msgspec.structs.replace(process, command="")
    return msgspec.structs.replace(process, command="", user=ANOTHER_USER, uid=None, container="")


def read_recording(path: Path) -> Iterator[AnyEvent]:
    """The events of a recording in order. A file whose name ends in `.gz` is compressed. Raises RecordingError, OSError.

    An incomplete last line (after a crash) is ignored. Any other damaged line is an error.
    """
    packed = path.suffix == ".gz"
    most_bytes = min(MOST_BYTES, max(LEAST_BYTES, MOST_RATIO * path.stat().st_size)) if packed else MOST_BYTES
    with gzip.open(path) if packed else path.open("rb") as file:
        number = read = 0
        while line := _next_line(file, path):
            number += 1
            read += len(line)
            if len(line) > MOST_LINE_BYTES:
                raise RecordingError(f"{path}: line {number} has more than {MOST_LINE_BYTES / 2**20:g} MiB")
            if read > most_bytes:
                raise RecordingError(f"{path}: a recording of more than {most_bytes / 2**20:.0f} MiB is too large to be replayed")
            try:
                event = decode_event(line)
            except (msgspec.DecodeError, RecursionError) as error:
                if number > 1 and not line.endswith(b"\n"):
                    return
                raise RecordingError(f"{path}: line {number}: not a gpuconsole recording: {error}") from None
            if number == 1 and not (isinstance(event, Hello) and event.role == "recording"):
                raise RecordingError(f"{path}: not a gpuconsole recording (no header)")
            yield event
        if number == 0:
            raise RecordingError(f"{path}: empty, not a gpuconsole recording")


def _next_line(file: gzip.GzipFile | io.BufferedReader, path: Path) -> bytes:
    """At most one byte more than a line may have; empty at the end. Raises RecordingError for a damaged compressed file."""
    try:
        return file.readline(MOST_LINE_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RecordingError(f"{path}: damaged: {error}") from None
