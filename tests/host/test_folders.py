"""Private folders: which folder is taken, and the scratch folders of several consoles."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gpuconsole.host import folders
from gpuconsole.host.folders import (
    NoPrivateFolder,
    Scratch,
    data_folder,
    runtime_folder,
    sweep_scratch,
    why_not_private,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own, and no folder for sockets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


def test_sockets_lie_below_the_runtime_folder_and_data_below_the_cache(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = home / "run"
    run.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    assert runtime_folder() == run / "gpuconsole"
    assert data_folder() == home / "cache" / "gpuconsole" / "run"
    assert (
        stat.S_IMODE(runtime_folder().stat().st_mode)
        == stat.S_IMODE(data_folder().stat().st_mode)
        == 0o700
    )


@pytest.mark.parametrize("kind", ["missing", "open", "link", "relative", "empty"])
def test_a_runtime_folder_that_is_not_the_users_alone_is_not_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = home / "run"
    if kind == "open":
        run.mkdir()
        run.chmod(0o755)
    elif kind == "link":
        (home / "elsewhere").mkdir(mode=0o700)
        run.symlink_to(home / "elsewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", {"relative": "run", "empty": ""}.get(kind, str(run)))
    assert runtime_folder() == data_folder() == home / "cache" / "gpuconsole" / "run"


def test_an_own_folder_that_was_open_is_closed(home: Path) -> None:
    (home / "cache" / "gpuconsole" / "run").mkdir(parents=True)
    (home / "cache" / "gpuconsole" / "run").chmod(0o777)
    assert stat.S_IMODE(data_folder().stat().st_mode) == 0o700


def test_a_cache_below_a_folder_that_everybody_can_write_is_refused_in_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "cache").mkdir()
    (home / "cache").chmod(0o777)
    # no second candidate
    monkeypatch.setattr(folders.pwd, "getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    with pytest.raises(
        NoPrivateFolder, match=r"everybody can write .*Set XDG_RUNTIME_DIR to a directory of yours"
    ) as raised:
        data_folder()
    assert "\n" not in str(raised.value)


def test_a_group_that_can_write_a_folder_above_is_named(home: Path) -> None:
    folder = home / "shared" / "run"
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    os.chown(home / "shared", -1, os.getgid()) if os.geteuid() else os.chown(
        home / "shared", -1, 12345
    )
    (home / "shared").chmod(0o775)
    reason = why_not_private(folder)
    assert ("can write" in reason and "chmod g-w" in reason) or os.geteuid()


def test_a_link_on_the_way_counts_with_both_of_its_ends(home: Path) -> None:
    """A cache is often a link to a larger disk. Who can replace the link can replace the folder."""
    (home / "disk").mkdir(mode=0o700)
    (home / "disk" / "run").mkdir(mode=0o700)
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    (home / "open" / "link").symlink_to(home / "disk")
    assert "everybody can write" in why_not_private(home / "open" / "link" / "run")
    (home / "link").symlink_to(home / "disk")
    assert why_not_private(home / "link" / "run") == ""


def test_a_link_to_a_link_counts_with_what_is_between(home: Path) -> None:
    """The attack: ~/.cache leads to a link in an open folder, which leads to a folder of the user's
    own. Whoever replaces the link in the middle chooses the folder."""
    (home / "real" / "run").mkdir(parents=True)
    for folder in (home / "real", home / "real" / "run"):
        folder.chmod(0o700)
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    (home / "open" / "middle").symlink_to(home / "real")
    (home / "cache").symlink_to(home / "open" / "middle")
    assert "everybody can write" in why_not_private(home / "cache" / "run")
    (home / "open").chmod(0o755)
    (home / "open" / "middle").unlink()
    (home / "open" / "middle").symlink_to("../open/../real")
    assert why_not_private(home / "cache" / "run") == ""
    (home / "circle").symlink_to(home / "circle")
    assert "Too many levels" in why_not_private(home / "circle" / "run")


def test_a_member_by_primary_group_is_another_member(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = folders.pwd.getpwuid(os.geteuid())
    folder = home / "shared" / "run"
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (home / "shared").chmod(0o770)
    group = SimpleNamespace(gr_name=user.pw_name, gr_mem=[])
    monkeypatch.setattr(folders.grp, "getgrgid", lambda number: group)
    monkeypatch.setattr(folders.pwd, "getpwall", lambda: [user])
    assert why_not_private(folder) == ""
    third = SimpleNamespace(pw_name="third", pw_gid=(home / "shared").stat().st_gid)
    monkeypatch.setattr(folders.pwd, "getpwall", lambda: [user, third])
    assert "can write" in why_not_private(folder)


HOLDER = """
import sys
from gpuconsole.host.folders import Scratch, data_folder
scratch = Scratch(data_folder())
(scratch.path / "data").write_text("in use")
print(scratch.path, flush=True)
sys.stdin.read()
"""


def test_scratch_folders_of_live_consoles_stay_and_those_of_dead_ones_go(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another PID namespace the owner's pid says nothing: the folder's name here holds a pid
    that does not exist."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    path = Path(holder.stdout.readline().strip())
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: False)
    try:
        sweep_scratch()
        assert (path / "data").exists()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    sweep_scratch()
    assert not path.exists()


def test_folders_of_other_machines_stay_until_they_are_very_old(home: Path) -> None:
    """A home folder may be shared by NFS. A lock of another machine is not seen here."""
    for name, age_s in (
        ("scratch-0123abcd-1-used", 3600.0),
        ("scratch-0123abcd-1-forgotten", 15 * 86400.0),
    ):
        folder = data_folder() / name
        folder.mkdir()
        os.utime(folder, (time.time() - age_s,) * 2)
    sweep_scratch()
    assert [path.name for path in data_folder().iterdir()] == ["scratch-0123abcd-1-used"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a second user needs root")
def test_nothing_is_created_in_the_home_folder_of_another_user(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sudo may keep HOME. A folder of root's in a user's cache would stop gpuconsole for that
    user."""
    (home / "cache").mkdir()
    os.chown(home / "cache", 12345, 12345)
    monkeypatch.setattr(folders.pwd, "getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    with pytest.raises(NoPrivateFolder, match="belongs to another user"):
        data_folder()
    assert list((home / "cache").iterdir()) == []


def test_the_folder_for_sockets_serves_for_data_where_there_is_no_other(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(*words: object) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(folders.platformdirs, "user_cache_dir", no_home)
    monkeypatch.setattr(folders.pwd, "getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    with pytest.raises(NoPrivateFolder, match="Set XDG_RUNTIME_DIR"):
        data_folder()
    sweep_scratch()  # says nothing
    (home / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    assert data_folder() == runtime_folder() == home / "run" / "gpuconsole"


def test_a_scratch_folder_goes_when_it_is_closed(home: Path) -> None:
    scratch = Scratch(data_folder())
    assert scratch.path.parent == data_folder()
    scratch.close()
    scratch.close()
    assert not scratch.path.exists()


def test_a_folder_that_another_console_sweeps_at_once_is_made_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the creation of the folder and its lock, the folder looks as if its owner had been
    killed."""
    make, swept = tempfile.mkdtemp, []

    def make_and_sweep(prefix: str, dir: Path) -> str:
        made = make(prefix=prefix, dir=dir)
        if not swept:
            swept.append(made)
            sweep_scratch()
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_sweep)
    scratch = Scratch(data_folder())
    assert scratch.path.is_dir() and str(scratch.path) not in swept
    scratch.close()
    assert not scratch.path.exists()
