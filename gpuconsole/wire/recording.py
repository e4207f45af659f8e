"""Recordings: a file with one JSON line for each event of the wire, whose first event is `Hello`
with role `recording`; or a folder of such files, a ring."""

from __future__ import annotations

import calendar
import contextlib
import errno
import gzip
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from gpuconsole import __version__
from gpuconsole.host.files import make_writable_folder, open_own, reading
from gpuconsole.model.encoding import has_large_number
from gpuconsole.model.machine import Process
from gpuconsole.model.serving import WATCHED
from gpuconsole.wire.events import (
    AnyEvent,
    DeviceKnown,
    DeviceLost,
    Devices,
    Event,
    Hello,
    Processes,
    Requests,
    RunOpened,
    Sample,
    ServerKnown,
    ServerState,
    Topology,
    Unavailable,
    Xid,
    decode_event,
    encode,
)

MODE = 0o600
"""Only the user may read a recording: it has more of the machine and of the job in it than a
snapshot."""
MAX_LINE_BYTES = 16 * 2**20
MAX_BYTES = 2**30
"""The longest line and the largest recording that are read, without compression. A day of training
with ten steps a second has about 0.4 GB."""
MAX_SPAN_S = 400 * 86400.0
MAX_WALL_TIME = 4e9
"""The longest recording, and the last moment (Unix seconds, the year 2096) that is accepted."""
MAX_RATIO = 40
MIN_BYTES = 32 * 2**20
"""A compressed recording that unpacks to more than 40 times its size, and to more than 32 MiB, is
refused. Recordings shrink to about a fourteenth."""
ANOTHER_USER = "another user"


class RecordingError(ValueError):
    """The file is not a recording; the message is one line."""


class RecordingCut(RecordingError):
    """A compressed recording has no end: it is being written, or its writer was killed."""


class ReadBudget:
    """The bytes, without compression, that may still be read from the files of one recording."""

    def __init__(self) -> None:
        self.left = MAX_BYTES


class RecordingWriter:
    """Appends each event at once, so that a crash loses at most the last second. Raises OSError."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """`new`: the file must not exist, not even as a link. For a name that another user could
        guess."""
        self.path = path
        self._file: IO[bytes] = os.fdopen(open_own(path, new=new), "wb")
        with contextlib.suppress(OSError):  # a pipe, for example
            os.fchmod(self._file.fileno(), MODE)
        self._flushed = 0.0
        now = time.monotonic()
        self.write(
            Hello(
                t=now, role="recording", pid=os.getpid(), version=__version__, wall_time=time.time()
            )
        )

    def write(self, event: Event) -> None:
        self._file.write(encode(event) + b"\n")
        now = time.monotonic()
        if now - self._flushed > 1.0:
            self._file.flush()
            self._flushed = now

    def close(self) -> None:
        self._file.close()


def as_recorded(event: AnyEvent) -> AnyEvent:
    """The event as a recording may hold it: without command lines of processes, and without the
    names of other users, who did not agree to that."""
    if not isinstance(event, Processes):
        return event
    return msgspec.structs.replace(
        event, processes=[_as_recorded(process) for process in event.processes]
    )


def _as_recorded(process: Process) -> Process:
    if process.uid in (None, os.geteuid()):
        return msgspec.structs.replace(process, command="", launcher="")
    return msgspec.structs.replace(
        process, command="", launcher="", user=ANOTHER_USER, uid=None, container=""
    )


def read_recording(path: Path, budget: ReadBudget | None = None) -> Iterator[AnyEvent]:
    """The events of a recording in order. A file whose name ends in `.gz` is compressed. `budget`
    is that of all files of a ring. Raises RecordingError, OSError.

    An incomplete last line (after a crash) is ignored. Any other damaged line is an error.
    """
    packed = path.suffix == ".gz"
    with reading(path) as stored, gzip.open(stored) if packed else stored as file:
        size = os.fstat(stored.fileno()).st_size
        budget = budget or ReadBudget()
        most_bytes = max(MIN_BYTES, MAX_RATIO * size) if packed else MAX_BYTES
        begun = 0.0
        number = read = 0
        while line := _next_line(file, path):
            number += 1
            read += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise RecordingError(
                    f"{path}: line {number} has more than {MAX_LINE_BYTES / 2**20:g} MiB"
                )
            budget.left -= len(line)
            if read > most_bytes or budget.left < 0:
                raise RecordingError(
                    f"{path}: a recording of more than {min(most_bytes, MAX_BYTES) / 2**20:.0f} MiB"
                    " is too large to be replayed"
                )
            try:
                event = decode_event(line)
            except (msgspec.DecodeError, RecursionError) as error:
                if number > 1 and not line.endswith(b"\n"):
                    return
                raise RecordingError(
                    f"{path}: line {number}: not a gpuconsole recording: {error}"
                ) from None
            if number == 1:
                if not (isinstance(event, Hello) and event.role == "recording"):
                    raise RecordingError(f"{path}: not a gpuconsole recording (no header)")
                begun = event.t
            wall = event.wall_time if isinstance(event, Hello) else 0.0
            if abs(event.t) > abs(begun) + MAX_SPAN_S or not 0 <= wall <= MAX_WALL_TIME:
                raise RecordingError(f"{path}: line {number}: a time is out of range")
            if has_large_number(line):
                raise RecordingError(f"{path}: line {number}: a number is out of range")
            yield event
        if number == 0:
            raise RecordingError(f"{path}: empty, not a gpuconsole recording")


def _next_line(file: gzip.GzipFile | IO[bytes], path: Path) -> bytes:
    """At most one byte more than a line may have; empty at the end. Raises RecordingError for a
    damaged compressed file."""
    try:
        return file.readline(MAX_LINE_BYTES + 1)
    except EOFError:
        raise RecordingCut(f"{path}: cut: it has no end, what comes before counts") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise RecordingError(f"{path}: damaged: {error}") from None


# --- a ring of recordings -------------------------------------------------------------------------
# A folder that holds the last day of what a console received, in less than RING_BYTES.
#
# Each file of the folder is a recording of an hour, compressed, and can be replayed alone; the
# oldest is deleted. The ring keeps one reading of each source per second, and no requests or steps:
# it answers what the server and the GPUs did at some time (`gpuconsole explain`).

KEPT_S = 24 * 3600.0
FILE_S = 3600.0
RING_BYTES = 48 * 2**20
PERIOD_S = 1.0
SYNC_S = 10.0
"""A crash loses at most the events of this time."""
LEVEL = 6
FILE_NAME, SUFFIX = "%Y-%m-%dT%H%M%S", ".jsonl.gz"
"""A file by its begin, in UTC. A second file of the same second has a number."""
NAME_LENGTH = len("2026-11-29T030000")
PATTERN = f"????-??-??T??????*{SUFFIX}"
MAX_WRITERS = 1000
MAX_FILES = 1000
"""Files of a ring that are read: a ring has 26, and one more for each start of the writer."""
MAX_UNWRITTEN = 2 * 2**20
"""Compressed bytes that are kept in memory while the disk is full: more than an hour."""
ROOM = 64 * 2**10
"""A file begins again where the disk has so much room."""
DIGITS = 5
"""Significant digits of a value: fewer bytes, and still 0.001 %."""
MAX_PERIOD_S = 16.0

_Key = tuple[str, str]


class _Packed:
    """A compressed file that nobody else writes. What cannot be written stays in memory."""

    def __init__(self, folder: Path, wall: float) -> None:
        """Raises OSError."""
        begun = time.strftime(FILE_NAME, time.gmtime(wall))
        for number in range(1, MAX_WRITERS):
            self.path = folder / f"{begun}{f'-{number}' if number > 1 else ''}{SUFFIX}"
            try:
                self._handle = open_own(self.path, new=True)
                break
            except FileExistsError:
                if number == MAX_WRITERS - 1:
                    raise
        self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
        self._unwritten = bytearray()

    @property
    def is_full(self) -> bool:
        return len(self._unwritten) > MAX_UNWRITTEN

    def add(self, event: AnyEvent) -> None:
        self._unwritten += self._packer.compress(encode(event) + b"\n")

    def sync(self, mode: int = zlib.Z_SYNC_FLUSH) -> None:
        """Write what is in memory to the file, so that a reader finds it. Raises OSError; the next
        call then writes the rest."""
        self._unwritten += self._packer.flush(mode)
        while self._unwritten:
            del self._unwritten[: os.write(self._handle, self._unwritten)]

    def close(self) -> None:
        """Raises OSError."""
        try:
            self.sync(zlib.Z_FINISH)
        finally:
            self.drop()

    def drop(self) -> None:
        os.close(self._handle)


class RingWriter:
    """Writes events to a ring. `clock`: seconds on the clock of the events; `wall`: Unix seconds.

    The constructor raises OSError. After that a full disk is `problem`, and the ring goes on when
    there is room: what was not written by then is in memory, or is lost if it is too much.
    """

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int = RING_BYTES,
        kept_s: float = KEPT_S,
        file_s: float = FILE_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        make_writable_folder(folder)
        self.path = folder
        self.problem = ""
        """Why nothing can be written now; empty where all is well."""
        self.lost_s = 0.0
        """The seconds of which the events were lost in the last time of a problem."""
        self._most_bytes, self._kept_s, self._file_s = most_bytes, kept_s, file_s
        self._clock, self._wall = clock, wall
        self._file: _Packed | None = None
        self._begun = self._synced = 0.0
        self._problem_from, self._loses = 0.0, False
        self._period_s = PERIOD_S
        self._last: dict[_Key, float] = {}
        self._standing: dict[_Key, AnyEvent] = {}
        """The newest event of each kind that stays true: a new file begins with them."""
        self._down = ""

    def write(self, event: AnyEvent) -> None:
        """Add an event, if the ring keeps its kind and the last one of this kind and source is old
        enough."""
        kept = self._kept(event)
        if kept is None:
            return
        now = self._clock()
        due = now - self._synced >= SYNC_S or not self._synced
        if self._file is None:
            if not due:
                return
        else:
            ends = now - self._begun >= self._file_s and not self.problem
            if due or ends:
                self._try(now, self._file.sync)
            if not ends or self.problem:
                self._file.add(kept)
                if self._file.is_full:  # it ends where the disk became full
                    self._file.drop()
                    self._file = None
                return
            file, self._file = self._file, None
            self._try(now, file.close)
        self._try(now, lambda: self._begin_file(now))
        if self._file is not None and all(kept is not one for one in self._standing.values()):
            self._file.add(kept)

    def close(self) -> None:
        """Raises OSError."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        elif self.problem:
            raise OSError(errno.ENOSPC, self.problem)

    def _try(self, now: float, work: Callable[[], None]) -> None:
        self._synced = now
        try:
            work()
        except OSError as error:
            if not self.problem:
                self._problem_from, self._loses = now, False
            self.problem = error.strerror or str(error)
            self._loses = self._loses or self._file is None
        else:
            self.lost_s = now - self._problem_from if self.problem and self._loses else 0.0
            self.problem = ""

    def _kept(self, event: AnyEvent) -> AnyEvent | None:
        """The event as the ring keeps it; None for one that it leaves out."""
        match event:
            case Devices():
                for key in [key for key in self._standing if key[1] == "DeviceKnown"]:
                    del self._standing[key]  # of the list before
                return self._standing_event(("", "Devices"), event)
            case Topology() | ServerKnown():
                return self._standing_event(("", type(event).__name__), event)
            case DeviceKnown():
                return self._standing_event((event.devices[0].id, "DeviceKnown"), event)
            case Unavailable():
                return self._standing_event((event.device, "Unavailable"), event)
            case Processes():
                listed = as_recorded(event)
                assert isinstance(listed, Processes)
                steady = [
                    msgspec.structs.replace(
                        process,
                        sm_ratio=None,
                        cpu_ratio=None,
                        memory_time_ratio=None,
                        memory_bytes=None,
                        host_memory_bytes=None,
                        state="",
                    )
                    for process in listed.processes
                ]
                return self._standing_event(
                    ("", "Processes"), msgspec.structs.replace(listed, processes=steady)
                )
            case Sample():
                values = {
                    name: float(f"{value:.{DIGITS}g}") for name, value in event.values.items()
                }
                return (
                    msgspec.structs.replace(event, values=values)
                    if self._due((event.device, "Sample"), event.t)
                    else None
                )
            case ServerState():
                return event if self._due(("", "ServerState"), event.t) else None
            case Requests() if event.down != self._down:
                self._down = event.down
                self._standing.pop(("", "down"), None)
                bare = msgspec.structs.replace(event, requests=[])
                return self._standing_event(("", "down"), bare) if event.down else bare
            case RunOpened() if event.workload == WATCHED:
                return self._standing_event(("", "RunOpened"), event)
            case DeviceLost() | Xid():
                return event
            case _:
                return None

    def _standing_event(self, key: _Key, event: AnyEvent) -> AnyEvent | None:
        """The event, where it says something new."""
        before = self._standing.get(key)
        self._standing[key] = event
        return (
            event if before is None or msgspec.structs.replace(before, t=event.t) != event else None
        )

    def _due(self, key: _Key, t: float) -> bool:
        if t - self._last.get(key, -1e9) < self._period_s * 0.9:
            return False
        self._last[key] = t
        return True

    def _begin_file(self, now: float) -> None:
        """Delete what is too old or too much, and begin a file with what stays true. Raises
        OSError."""
        self._make_room()
        if self.problem and shutil.disk_usage(self.path).free < ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        wall = self._wall()
        file = _Packed(self.path, wall)
        hello = Hello(t=now, role="recording", pid=os.getpid(), version=__version__, wall_time=wall)
        for event in (
            hello,
            *(msgspec.structs.replace(event, t=now) for event in self._standing.values()),
        ):
            file.add(event)
        try:
            file.sync()
        except OSError:
            file.drop()
            file.path.unlink(missing_ok=True)
            raise
        self._file, self._begun = file, now

    def _make_room(self) -> None:
        """Delete files, the oldest first, until as much as the last file fits. Where a day of such
        files does not fit, readings become rarer."""
        files, sizes = list[Path](), list[int]()
        for file in ring_files(self.path):
            with contextlib.suppress(FileNotFoundError):  # another watcher makes room too
                sizes.append(file.stat().st_size)
                files.append(file)
        last = sizes[-1] if sizes else 0
        whole_day = last * self._kept_s / self._file_s
        if whole_day > self._most_bytes and self._period_s < MAX_PERIOD_S:
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
        return calendar.timegm(time.strptime(file.name[:NAME_LENGTH], FILE_NAME))
    except ValueError:
        return 0.0


def ring_files(folder: Path) -> list[Path]:
    """The newest MAX_FILES files of a ring, the oldest first. Raises OSError."""
    files = [file for file in folder.glob(PATTERN) if file.is_file()]
    names = sorted(files, key=lambda file: (file.name[:NAME_LENGTH], len(file.name), file.name))
    return names[-MAX_FILES:]
