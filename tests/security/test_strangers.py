"""Attacks of another user by names: links, pipes and files that this user has planted where the
user writes, and folders that only look private. Each attack succeeded before.

The kernel's own protections (fs.protected_symlinks and its like) hide some of the attacks on other
machines; the refusals must not depend on them.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuconsole.experiments import baselines
from gpuconsole.host import files, folders
from gpuconsole.host.files import (
    check_writable,
    make_writable_folder,
    new_folder,
    open_own,
    read_limited,
    reading,
    unused,
    write_new,
    write_whole,
)
from gpuconsole.host.folders import make_private, user_folder, why_not_private
from gpuconsole.wire.events import DeviceLost
from gpuconsole.wire.recording import RingWriter
from tests.conftest import Cli
from tests.security.other_user import NOBODY, needs_root

SECRET = b"precious"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder such as /tmp: everybody can write in it, and it has the sticky bit."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file of the user that a planted link names."""
    path = tmp_path / "bash_aliases"
    path.write_bytes(SECRET)
    return path


def planted(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return path


def pipe_of_stranger(path: Path) -> Path:
    os.mkfifo(path)
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o666)
    return path


def _open_own(path: Path) -> None:
    os.close(open_own(path))


def _append(path: Path) -> None:
    os.close(open_own(path, append=True))


WRITES: dict[str, Callable[[Path], object]] = {
    "write_whole": lambda path: write_whole(path, b"page"),
    "open_own": _open_own,
    "append": _append,
    "check_writable": check_writable,
    "check in place": lambda path: check_writable(path, in_place=True),
}


@needs_root
@pytest.mark.parametrize("way", WRITES)
def test_nothing_is_written_through_a_link_of_another_user(
    shared: Path, own: Path, way: str
) -> None:
    link = planted(shared / "report.html", own)
    with pytest.raises(PermissionError, match="symbolic link of another user"):
        WRITES[way](link)
    assert own.read_bytes() == SECRET and link.is_symlink()


@needs_root
@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("kind", ["folder", "chain", "relative", "dangling"])
def test_a_link_further_up_or_behind_a_link_of_the_user_counts_too(
    shared: Path, own: Path, tmp_path: Path, way: str, kind: str
) -> None:
    if kind == "folder":
        path = planted(shared / "results", tmp_path) / own.name
    elif kind == "chain":
        planted(shared / "latest", own)
        path = tmp_path / "my.html"
        path.symlink_to(shared / "latest")
    elif kind == "relative":
        path = planted(shared / "r.html", Path("..") / own.name)
    else:
        path = planted(shared / "r.html", tmp_path / "new")
    with pytest.raises(PermissionError, match="symbolic link of another user"):
        WRITES[way](path)
    assert own.read_bytes() == SECRET and not (tmp_path / "new").exists()


@needs_root
def test_a_report_follows_no_planted_link(cli: Cli, shared: Path, own: Path) -> None:
    planted(shared / "s.json", own)
    done = cli("run", "--headless", "--snapshot", str(shared / "s.json"), "--", "true")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "s.json is a symbolic link of another user" in done.stderr
    assert own.read_bytes() == SECRET


@needs_root
@pytest.mark.parametrize("way", WRITES)
def test_no_pipe_of_another_user_takes_a_recording_or_a_report(shared: Path, way: str) -> None:
    pipe = pipe_of_stranger(shared / "rec.jsonl")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(PermissionError, match="pipe or a device of another user"):
            WRITES[way](pipe)
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)


@needs_root
def test_a_pipe_of_another_user_without_a_reader_stops_no_command(cli: Cli, shared: Path) -> None:
    pipe = pipe_of_stranger(shared / "rec.jsonl")
    done = cli("run", "--headless", "--record", str(pipe), "--", "true", timeout=30)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr


def test_the_users_own_pipe_is_written_and_read(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match="no program reads this pipe"):
        write_whole(pipe, b"{}")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"{}")
    assert os.read(reader, 100) == b"{}"
    os.close(reader)
    reader = os.open(pipe, os.O_RDWR)
    os.write(reader, b"{}")
    with reading(pipe) as file:
        assert file.read(2) == b"{}"
    os.close(reader)


def test_a_pipe_that_nobody_writes_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WAIT_S", 0.05)
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match="no program writes to this pipe"):
        read_limited(pipe, 100)
    with pytest.raises(OSError, match="not a regular file"):
        read_limited(pipe, 100, regular=True)


@needs_root
def test_a_pipe_of_another_user_is_not_read(shared: Path) -> None:
    pipe = pipe_of_stranger(shared / "config.toml")
    for regular in (False, True):
        with pytest.raises(OSError, match=r"another user|not a regular file"):
            read_limited(pipe, 100, regular=regular)


@needs_root
def test_reading_keeps_to_the_rule_of_the_kernel_about_links(
    shared: Path, own: Path, tmp_path: Path
) -> None:
    """A colleague's link in the colleague's own folder is read."""
    with pytest.raises(PermissionError, match="symbolic link of another user"):
        read_limited(planted(shared / "run.json", own), 100)
    (theirs := tmp_path / "theirs").mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    assert read_limited(planted(theirs / "latest", own), 100) == SECRET


@needs_root
def test_a_second_name_of_the_users_file_is_not_written_in_place(shared: Path, own: Path) -> None:
    """fs.protected_hardlinks=0: everybody can give a file a second name."""
    os.link(own, shared / "rec.jsonl")
    for options in ({}, {"append": True}):
        with pytest.raises(PermissionError, match="second name"):
            os.close(open_own(shared / "rec.jsonl", **options))
    write_whole(shared / "rec.jsonl", b"{}")
    assert own.read_bytes() == SECRET, "a file that is replaced leaves its other name alone"


@needs_root
def test_a_ring_writes_into_no_file_that_another_user_made(shared: Path) -> None:
    wall = 1_764_426_555.0
    names = [shared / f"2025-11-29T142915{number}.jsonl.gz" for number in ("", "-2")]
    names[0].touch()
    os.chown(names[0], NOBODY, NOBODY)
    names[0].chmod(0o666)
    pipe_of_stranger(names[1])
    ring = RingWriter(shared, clock=lambda: 100.0, wall=lambda: wall)
    ring.write(DeviceLost(100.0, "gpu:0", "reason"))
    ring.close()
    assert names[0].read_bytes() == b""
    ours = [path for path in shared.iterdir() if path not in names]
    assert [stat.S_IMODE(path.stat().st_mode) for path in ours] == [0o600]


@needs_root
def test_names_that_are_taken_stop_no_command(shared: Path, own: Path) -> None:
    planted(shared / "out.txt", own)
    assert unused(shared / "out.txt") == shared / "out-2.txt"
    assert write_new(shared / "out.txt", b"1").read_bytes() == b"1"
    (shared / "runs").mkdir()
    assert new_folder(shared / "runs") == shared / "runs-2"
    assert own.read_bytes() == SECRET


@needs_root
def test_a_folder_behind_a_planted_link_is_not_made(shared: Path, tmp_path: Path) -> None:
    planted(shared / "traces", tmp_path / "home")
    (tmp_path / "home").mkdir()
    for folder in (shared / "traces", shared / "traces" / "new"):
        with pytest.raises(PermissionError, match="symbolic link of another user"):
            make_writable_folder(folder)
    assert list((tmp_path / "home").iterdir()) == []


# --- private folders ------------------------------------------------------------------------------

ACL = "system.posix_acl_access"


def grant(folder: Path, user: int, bits: int) -> None:
    """Give `user` permissions by an access control list, as `setfacl -m u:USER:rwx` does."""
    undefined = 0xFFFFFFFF
    entries = [(1, 7, undefined), (2, bits, user), (4, 0, undefined), (16, 7, undefined)]
    entries.append((32, 0, undefined))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(folder, ACL, acl)
    except OSError as error:
        pytest.skip(f"the file system has no access control lists: {error.strerror}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    return home


def test_a_folder_that_an_access_control_list_opens_is_not_private(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_is_own_group", lambda number: True)
    (cache := home / ".cache").mkdir()
    grant(cache, NOBODY, 5)
    assert why_not_private(make_private(cache / "gpuconsole")) == "", "others may read"
    grant(cache, NOBODY, 7)
    with pytest.raises(PermissionError, match="access control list"):
        make_private(cache / "gpuconsole")


@pytest.fixture
def listed_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root's own home directory, from the list of users."""
    listed = tmp_path / "root"
    listed.mkdir(mode=0o700)
    monkeypatch.setattr(folders, "_listed_home", lambda: str(listed))
    return listed


@needs_root
@pytest.mark.parametrize("kind", ["cache", "config", "data", "state"])
def test_root_with_the_home_of_a_user_uses_its_own_folders(
    home: Path, listed_home: Path, kind: folders.FolderKind
) -> None:
    assert user_folder(kind).is_relative_to(home)
    os.chown(home, NOBODY, NOBODY)
    assert user_folder(kind).is_relative_to(listed_home)


@needs_root
def test_a_link_in_the_home_of_a_user_to_a_folder_of_root_does_not_help(
    home: Path, listed_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    planted(home / "cache", tmp_path / "etc")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    assert user_folder("cache").is_relative_to(listed_home)


def test_baselines_and_caches_are_private(home: Path) -> None:
    from gpuconsole.workloads.process import cache_folder

    before = os.umask(0o002)
    try:
        (home / ".local" / "share" / "gpuconsole").mkdir(parents=True)
        for folder in (home / ".local", home / ".local" / "share"):
            folder.chmod(0o700)
        baselines.check_folder(baselines.baselines_folder() / "run-0123456789abcdef")
        made = cache_folder()
    finally:
        os.umask(before)
    for folder in (home / ".local" / "share" / "gpuconsole", made):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert why_not_private(folder) == ""


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before
