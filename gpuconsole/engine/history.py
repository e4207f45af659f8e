"""Reads the history of a recording, or of a ring of recordings."""

from __future__ import annotations

from pathlib import Path

from gpuconsole.session.history import History
from gpuconsole.wire.recording import RecordingError, read_recording, ring_files


def read_history(path: Path) -> tuple[History, list[str]]:
    """What the recording `path`, or the folder `path` of a ring, says; and a line for each file
    whose end could not be read. Raises RecordingError, OSError.

    The last file of a ring that is being written has no end yet, and a crash may leave others so:
    what comes before counts.
    """
    history, notes = History(), list[str]()
    ring = path.is_dir()
    files = ring_files(path) if ring else [path]
    if not files:
        raise RecordingError(
            f"{path}: this folder has no recording (a ring has files such as"
            " 2026-11-29T030000.jsonl.gz)"
        )
    for file in files:
        known = history.ended
        try:
            for event in read_recording(file):
                history.add(event)
        except RecordingError as error:
            if history.ended <= known or not ring:
                raise
            if file != files[-1]:
                notes.append(str(error))
    return history, notes
