"""A ring of recordings: a folder that holds the last day of what a console received, in less than MOST_BYTES.

Each file of the folder is a recording of an hour, compressed, and can be replayed alone; the oldest is deleted. The ring keeps one reading of each source per
second, and no requests or steps: it answers what the server and the GPUs did at some time (`gpuconsole explain`).
"""

from __future__ import annotations

import calendar
import contextlib
import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from gpuconsole import __version__
from gpuconsole.model.files import make_writable_folder
from gpuconsole.wire.events import (
    AnyEvent,
    DeviceLost,
    Devices,
    Hello,
    Processes,
    Requests,
    Sample,
    ServerKnown,
    ServerState,
    Topology,
    Unavailable,
    Xid,
    encode,
)
from gpuconsole.wire.recording import MODE, as_recorded

KEPT_S = 24 * 3600.0
FILE_S = 3600.0
MOST_BYTES = 48 * 2**20
PERIOD_S = 1.0
SYNC_S = 10.0
"""A crash loses at most the events of this time."""
LEVEL = 6
NAME = "%Y-%m-%dT%H%M%S.jsonl.gz"
"""A file by its begin, in UTC."""
PATTERN = "????-??-??T??????.jsonl.gz"
DIGITS = 5
"""Significant digits of a value: fewer bytes, and still 0.001 %."""
LONGEST_PERIOD_S = 16.0

_Key = tuple[str, str]


class RingWriter:
    """Writes events to a ring. Raises OSError. `clock`: seconds on the clock of the events; `wall`: Unix seconds."""

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int = MOST_BYTES,
        kept_s: float = KEPT_S,
        file_s: float = FILE_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        make_writable_folder(folder)
        self.path = folder
        self._most_bytes, self._kept_s, self._file_s = most_bytes, kept_s, file_s
        self._clock, self._wall = clock, wall
        self._file: tuple[gzip.GzipFile, IO[bytes]] | None = None
        self._begun = self._synced = 0.0
        self._period_s = PERIOD_S
        self._last: dict[_Key, float] = {}
        self._standing: dict[_Key, AnyEvent] = {}
        """The newest event of each kind that stays true: a new file begins with them."""
        self._down = ""

    def write(self, event: AnyEvent) -> None:
        """Add an event, if the ring keeps its kind and the last one of this kind and source is old enough."""
        kept = self._kept(event)
        if kept is None:
            return
        now = self._clock()
        if self._file is None or now - self._begun >= self._file_s:
            self._next_file(now)
            if any(kept is standing for standing in self._standing.values()):
                return  # the file begins with it
        assert self._file is not None
        file, raw = self._file
        file.write(encode(kept) + b"\n")
        if now - self._synced >= SYNC_S:
            file.flush()
            raw.flush()
            self._synced = now

    def close(self) -> None:
        if self._file is not None:
            (file, raw), self._file = self._file, None
            file.close()
            raw.close()

    def _kept(self, event: AnyEvent) -> AnyEvent | None:
        """The event as the ring keeps it; None for one that it leaves out."""
        match event:
            case Devices() | Topology() | ServerKnown():
                return self._standing_event(("", type(event).__name__), event)
            case Unavailable():
                return self._standing_event((event.device, "Unavailable"), event)
            case Processes():
                bare = as_recorded(event)
                assert isinstance(bare, Processes)
                steady = [msgspec.structs.replace(process, sm_ratio=None, cpu_ratio=None, memory_bytes=None) for process in bare.processes]
                return self._standing_event(("", "Processes"), msgspec.structs.replace(bare, processes=steady))
            case Sample():
                values = {name: float(f"{value:.{DIGITS}g}") for name, value in event.values.items()}
                return msgspec.structs.replace(event, values=values) if self._due((event.device, "Sample"), event.t) else None
            case ServerState():
                return event if self._due(("", "ServerState"), event.t) else None
            case Requests() if event.down != self._down:
                self._down = event.down
                return msgspec.structs.replace(event, requests=[])
            case DeviceLost() | Xid():
                return event
            case _:
                return None

    def _standing_event(self, key: _Key, event: AnyEvent) -> AnyEvent | None:
        """The event, where it says something new."""
        before = self._standing.get(key)
        self._standing[key] = event
        return event if before is None or msgspec.structs.replace(before, t=event.t) != event else None

    def _due(self, key: _Key, t: float) -> bool:
        if t - self._last.get(key, -1e9) < self._period_s * 0.9:
            return False
        self._last[key] = t
        return True

    def _next_file(self, now: float) -> None:
        """End the present file, delete what is too old or too much, and begin a file with what stays true."""
        self.close()
        self._make_room()
        wall = self._wall()
        path = self.path / time.strftime(NAME, time.gmtime(wall))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
        raw = os.fdopen(handle, "ab")
        file = gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=raw, mtime=wall)
        self._file, self._begun, self._synced = (file, raw), now, now
        hello = Hello(t=now, role="recording", pid=os.getpid(), version=__version__, wall_time=wall)
        for event in (hello, *(msgspec.structs.replace(event, t=now) for event in self._standing.values())):
            file.write(encode(event) + b"\n")

    def _make_room(self) -> None:
        """Delete files, the oldest first, until as much as the last file fits. Where a day of such files does not fit, readings become rarer."""
        files = ring_files(self.path)
        sizes = [file.stat().st_size for file in files]
        last = sizes[-1] if sizes else 0
        whole_day = last * self._kept_s / self._file_s
        if whole_day > self._most_bytes and self._period_s < LONGEST_PERIOD_S:
            self._period_s *= 2
        elif 3 * whole_day < self._most_bytes and self._period_s > PERIOD_S:
            self._period_s /= 2
        total, oldest = sum(sizes), self._wall() - self._kept_s - self._file_s
        for file, size in zip(files, sizes, strict=True):
            if total + last <= self._most_bytes and _begun(file) > oldest:
                break
            with contextlib.suppress(FileNotFoundError):
                file.unlink()
            total -= size


def _begun(file: Path) -> float:
    """When a file of a ring begins, in Unix seconds: by its name. 0 for another file."""
    try:
        return calendar.timegm(time.strptime(file.name, NAME))
    except ValueError:
        return 0.0


def ring_files(folder: Path) -> list[Path]:
    """The files of a ring, the oldest first. Raises OSError."""
    return sorted(file for file in folder.glob(PATTERN) if file.is_file())
