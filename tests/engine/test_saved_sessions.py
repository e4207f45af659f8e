"""A session that is saved under no name of the user's own: two consoles do not share a file, and a
folder that takes no file loses no session."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpuconsole.engine.job import log_path
from gpuconsole.engine.reader import write_snapshot
from gpuconsole.host.files import write_new
from gpuconsole.model.snapshot import Environment, Snapshot, decode


def session(created: str) -> Snapshot:
    return Snapshot(created=created, gpuconsole="1", environment=Environment(), runs=[], trials=[])


def test_sessions_that_end_in_the_same_second_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a window with two consoles in one folder is closed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-120000")
    paths = [write_snapshot(session(name), None) for name in ("first", "second", "third")]
    assert [decode(path.read_bytes()).created for path in paths] == ["first", "second", "third"]
    assert sorted(os.listdir()) == [
        "gpuconsole-20260101-120000-2.json",
        "gpuconsole-20260101-120000-3.json",
        "gpuconsole-20260101-120000.json",
    ]


def test_a_folder_that_is_gone_or_takes_no_file_loses_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    path = write_snapshot(session("kept"), None)
    assert path.parent == tmp_path / "state" / "gpuconsole" == log_path().parent
    assert decode(path.read_bytes()).created == "kept"
    monkeypatch.chdir("/proc/self")  # nobody can make a file there
    assert write_snapshot(session("kept too"), None).parent == path.parent


def test_a_new_file_that_cannot_be_completed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_new(tmp_path / "a.json", b"data")
    assert os.listdir(tmp_path) == []
