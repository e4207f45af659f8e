"""Reads the history of a recording, or of a ring of recordings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from gpuconsole.model.serving import WATCHED
from gpuconsole.session.history import History
from gpuconsole.wire.events import RunOpened, ServerState
from gpuconsole.wire.recording import (
    ReadBudget,
    RecordingCut,
    RecordingError,
    read_recording,
    ring_files,
)

SEARCHED = 5000
"""A file names its server within so many events, before the first reading of the server."""
MAX_SIZE = 2_000_000
"""The most values that are held, with about 200 bytes each. A day of a server has 0.5 million."""
OPEN_S = 30.0
"""A file without an end is still being written where nothing comes so long after it."""


def read_history(path: Path, url: str | None = None) -> tuple[History, list[str]]:
    """What the recording `path`, or the folder `path` of a ring, says of the server at `url` (None:
    of the only one); and a line for each file that could not be read, or not to its end. Raises
    RecordingError, OSError.

    A ring that is being written has a file without an end, and a crash may leave others so: what
    comes before counts.
    """
    ring = path.is_dir()
    files = ring_files(path) if ring else [path]
    if not files:
        raise RecordingError(
            f"{path}: this folder has no recording (a ring has files such as"
            " 2026-11-29T030000.jsonl.gz)"
        )
    files = _of_server(path, files, url)
    history, notes, budget = History(), list[str](), ReadBudget()
    cut: list[tuple[float, RecordingCut]] = []
    unread = 0
    for file in files:
        known = history.ended
        try:
            for event in read_recording(file, budget):
                history.add(event)
                if history.size > MAX_SIZE:
                    raise RecordingError(f"{path}: has too many readings to be explained")
        except (RecordingError, OSError) as error:
            if not ring:
                raise
            if isinstance(error, RecordingCut) and history.ended > known:
                cut.append((history.ended, error))
                continue
            unread += history.ended <= known
            why = f"{file}: cannot be read: {error.strerror}" if isinstance(error, OSError) else ""
            notes.append(why or str(error))
    if unread == len(files):
        more = f"; nor can the other files of the ring, {unread - 1}" if unread > 1 else ""
        raise RecordingError(f"{notes[0]}{more}")
    return history, [*notes, *(str(error) for t, error in cut if t < history.ended - OPEN_S)]


def _of_server(path: Path, files: Sequence[Path], url: str | None) -> list[Path]:
    """The files about the server at `url`, and those that name none. Raises RecordingError where
    there are several servers to choose from, or no such one."""
    server_of = {file: _server(file) for file in files}
    servers = sorted({server for server in server_of.values() if server})
    if url is not None:
        wanted = [server for server in servers if _plain(server) == _plain(url)]
        if not wanted:
            known = ", ".join(servers) or "none by its address"
            raise RecordingError(f"{path}: has no recording of {url}; it has: {known}")
    elif len(servers) > 1:
        raise RecordingError(
            f"{path}: has recordings of {len(servers)} servers, {', '.join(servers)}: choose one"
            " with --url"
        )
    else:
        wanted = servers
    return [file for file in files if server_of[file] in ("", *wanted)]


def _server(file: Path) -> str:
    """The address of the server that a recording watches; empty where it names none."""
    try:
        for event in itertools.islice(read_recording(file), SEARCHED):
            if isinstance(event, RunOpened) and event.workload == WATCHED:
                return event.scenario
            if isinstance(event, ServerState):
                break
    except (RecordingError, OSError):
        pass  # reading the file again says so
    return ""


def _plain(url: str) -> str:
    return url.strip().rstrip("/").lower().removesuffix("/v1")
