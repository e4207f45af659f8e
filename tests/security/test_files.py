"""M2, M4, M5 and M8: what others leave behind, who may read our files, names that can be guessed,
and files from elsewhere."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import stat
import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest

from gpuconsole.cli.agents import _own_file
from gpuconsole.cli.files import write_patch
from gpuconsole.engine.children.terminal.holder import Holder
from gpuconsole.engine.children.terminal.pty import JobTerminal
from gpuconsole.engine.job import log_path
from gpuconsole.engine.recording import SessionRecorder
from gpuconsole.host.files import write_whole
from gpuconsole.host.folders import BOOT_ID
from gpuconsole.model.machine import Process
from gpuconsole.model.snapshot import SCHEMA, SnapshotError, decode, encode
from gpuconsole.report.patch import FolderPatch, Patch
from gpuconsole.wire.events import Processes
from gpuconsole.wire.recording import RecordingError, RecordingWriter, read_recording
from tests.conftest import Cli
from tests.security.other_user import NOBODY, as_nobody, needs_root

DEEP = 3000
NEST = f"""
import os, sys
os.mkdir(sys.argv[1]); os.chdir(sys.argv[1])
for _ in range({DEEP}):
    os.mkdir("d"); os.chdir("d")
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- M2: clean-up ---------------------------------------------------------------------------------


@needs_root
def test_a_folder_that_another_user_left_stops_no_command(cli: Cli) -> None:
    folder = Path(tempfile.gettempdir(), f"gpuconsole-scratch-{os.getpid()}-x")
    try:
        assert as_nobody(NEST, str(folder)).returncode == 0
        done = cli("run", "--headless", "--", "true")
        assert done.returncode == 0 and "Traceback" not in done.stderr
        assert folder.exists(), "it belongs to another user"
    finally:
        shutil_rmtree_deep(folder)


def test_an_own_folder_of_many_levels_stops_no_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nested = tmp_path / "gpuconsole" / "run" / f"scratch-{BOOT_ID.read_text()[:8]}-1-x"
    nested.mkdir(parents=True)
    here = os.getcwd()
    try:
        os.chdir(nested)
        for _ in range(DEEP):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    try:
        done = cli("run", "--headless", "--", "true")
        assert done.returncode == 0 and "Traceback" not in done.stderr
    finally:
        shutil_rmtree_deep(nested)


def shutil_rmtree_deep(folder: Path) -> None:
    """Remove a folder of more levels than `shutil.rmtree` can go down."""
    while folder.exists():
        below = folder
        for _ in range(400):
            if not (below / "d").is_dir():
                break
            below = below / "d"
        if below == folder or not (below / "d").exists():
            shutil.rmtree(folder)
        else:
            moved = folder.with_name(folder.name + "-rest")
            (below / "d").rename(moved)
            shutil.rmtree(folder)
            moved.rename(folder)


# --- M4: who may read our files -------------------------------------------------------------------


@pytest.fixture
def private_umask() -> object:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("private_umask")
def test_a_private_umask_counts(tmp_path: Path) -> None:
    write_whole(tmp_path / "snapshot.json", b"{}")
    assert mode(tmp_path / "snapshot.json") == 0o600


def test_a_file_keeps_the_permissions_that_its_owner_gave_it(tmp_path: Path) -> None:
    for number in (0o600, 0o640, 0o664):
        path = tmp_path / f"{number:o}"
        path.touch()
        path.chmod(number)
        write_whole(path, b"new")
        assert mode(path) == number and path.read_bytes() == b"new"


@needs_root
@pytest.mark.parametrize("name", ["page.html", "page.md", "s.json", "p.diff"])
def test_the_permissions_that_another_user_gave_a_file_are_not_kept(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    """The attack: a file of mode 6777 in the place of a report. Root wrote the report there, with
    setuid root and open to everybody."""
    from tests.report.small_session import small_session

    (tmp_path / "in.json").write_bytes(encode(small_session()))
    planted = tmp_path / name
    planted.write_bytes(b"x" * 300_000)
    os.chown(planted, NOBODY, NOBODY)
    planted.chmod(0o6777)
    before = os.umask(0o022)
    try:
        if name == "s.json":
            assert cli("diagnose", "in.json", "--snapshot", name).returncode == 0
        elif name == "p.diff":
            write_patch(planted, Patch((FolderPatch("", "--- a\n"),)))
        else:
            assert (
                cli(
                    "report", "in.json", "--html" if name == "page.html" else "--markdown", name
                ).returncode
                == 0
            )
    finally:
        os.umask(before)
    assert (planted.stat().st_uid, mode(planted)) == (0, 0o644) and planted.stat().st_size < 300_000


def test_setuid_is_never_kept(tmp_path: Path) -> None:
    (tmp_path / "own").touch()
    (tmp_path / "own").chmod(0o6750)
    write_whole(tmp_path / "own", b"new")
    assert mode(tmp_path / "own") == 0o750


@needs_root
@pytest.mark.parametrize("option", ["--record", "--output"])
def test_a_file_of_another_user_is_not_written_in_place(
    cli: Cli, tmp_path: Path, option: str
) -> None:
    """Its owner would read what is written."""
    (tmp_path / "theirs").touch()
    os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    (tmp_path / "theirs").chmod(0o666)
    words = ("--headless", option, "theirs") if option == "--record" else (option, "theirs")
    done = cli("mcp", *words[-2:], "--", "true")
    assert (
        done.returncode == 2
        and "the file belongs to another user" in done.stderr
        and done.stderr.count("\n") == 1
    ), done.stderr
    assert (tmp_path / "theirs").read_bytes() == b""


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "new", b"")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == 0o644


def test_only_the_user_reads_a_recording_and_other_users_are_not_named_in_it(
    tmp_path: Path,
) -> None:
    recorder, path = SessionRecorder(), tmp_path / "session.jsonl"
    other = Process(
        7,
        "gpu:0",
        name="python",
        user="alice",
        uid=os.geteuid() + 1,
        command="train.py --key secret",
        container="abc",
        lineage=(6,),
        launcher="torchrun train.py --key secret",
    )
    own = Process(
        8,
        "gpu:0",
        name="python",
        user="me",
        uid=os.geteuid(),
        command="train.py",
        launcher="secret",
    )
    recorder.toggle(path, [])
    recorder.write(Processes(1.0, [other, own]))
    recorder.close()
    assert mode(path) == 0o600
    _, event = read_recording(path)
    assert isinstance(event, Processes)
    assert [
        (process.user, process.uid, process.container, process.command)
        for process in event.processes
    ] == [
        ("another user", None, "", ""),
        ("me", os.geteuid(), "", ""),
    ]
    assert "alice" not in path.read_text() and "secret" not in path.read_text()
    assert event.processes[0].lineage == (6,), "a replay groups processes into jobs, too"


# --- M5: names that can be guessed ----------------------------------------------------------------


@pytest.fixture
def guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the user's own, to which an attacker makes links with the names that the console
    will choose."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form, *more: "20261124-120000")
    victim = tmp_path / "bashrc"
    victim.write_text("precious")
    return victim


def test_the_log_of_a_left_job_is_never_written_through_a_link(guessed: Path) -> None:
    log = log_path()
    log.symlink_to(guessed)
    ours, theirs = socket.socketpair()
    master, slave = os.openpty()
    with ours, theirs:
        holder = Holder(master, theirs, -1, str(log))
        holder._pending += b"output of the job"
        holder._lose()
    os.close(master)
    os.close(slave)
    assert guessed.read_text() == "precious"
    assert (
        log.with_name("gpuconsole-output-20261124-120000-2.txt").read_text() == "output of the job"
    )


def test_a_recording_with_a_dated_name_is_never_written_through_a_link(guessed: Path) -> None:
    (guessed.parent / "gpuconsole-20261124-120000.jsonl").symlink_to(guessed)
    assert SessionRecorder().toggle(None, []) == Path("gpuconsole-20261124-120000-2.jsonl")
    assert guessed.read_text() == "precious"


def test_a_snapshot_with_a_dated_name_replaces_the_link_and_not_its_target(guessed: Path) -> None:
    from gpuconsole.engine.reader import write_snapshot
    from tests.report.small_session import small_session

    link = guessed.parent / "gpuconsole-20261124-120000.json"
    link.symlink_to(guessed)
    write_snapshot(small_session(), None)
    assert guessed.read_text() == "precious" and not link.is_symlink()


def test_the_output_file_of_a_coding_agents_job_is_never_a_link(guessed: Path) -> None:
    """The attack: links for each second and process id. The output of the job landed in
    ~/.bash_aliases."""
    link = guessed.parent / f"gpuconsole-output-20261124-120000-{os.getpid()}.txt"
    link.symlink_to(guessed)
    with pytest.raises(FileExistsError):
        JobTerminal(80, 24, link, log_path(), new=True)
    assert _own_file() == link.with_stem(f"{link.stem}-2"), "a planted name stops no command"
    assert guessed.read_text() == "precious"


def test_the_page_beside_the_events_of_tensorboard_is_never_written_through_a_link(
    guessed: Path,
) -> None:
    """The attack: folders for each second, with a link in each. The page replaced
    ~/.ssh/authorized_keys."""
    pytest.importorskip("tensorboard")
    from gpuconsole.report.trackers.readings import Final, Point, SessionFacts
    from gpuconsole.report.trackers.tensorboard import TensorBoard

    planted = guessed.parent / "runs" / "20261124-120000"
    planted.mkdir(parents=True)
    (planted / "report.html").symlink_to(guessed)
    for tracker in (TensorBoard(), TensorBoard(str(planted))):
        tracker.begin(SessionFacts("title", {}))
        tracker.end(Final(Point(1.0, 1.0, ()), lambda: "a page"))
    assert guessed.read_text() == "precious"
    assert (guessed.parent / "runs" / "20261124-120000-2" / "report.html").read_text() == "a page"
    assert (
        not (planted / "report.html").is_symlink()
        and (planted / "report.html").read_text() == "a page"
    )


def test_a_file_that_the_user_names_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "out.json"
    link.symlink_to(tmp_path / "disk" / "out.json")
    write_whole(link, b"{}")
    assert link.is_symlink() and (tmp_path / "disk" / "out.json").read_bytes() == b"{}"


# --- M8: files from elsewhere ---------------------------------------------------------------------

NESTED = "[" * 200_000 + "]" * 200_000


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "deep.json",
            '{"schema": "gpuconsole.snapshot/1", "runs": ' + NESTED + "}",
            ("report", "deep.json"),
        ),
        (
            "deep.json",
            '{"schema": "gpuconsole.snapshot/1", "runs": ' + NESTED + "}",
            ("diagnose", "deep.json"),
        ),
        ("deep.toml", "name = 'x'\nknobs = " + NESTED, ("run", "./deep.toml", "--headless")),
        (
            "deep.jsonl",
            '{"event": "hello", "x": ' + NESTED + "}\n",
            ("replay", "deep.jsonl", "--headless"),
        ),
        (
            "deep.json",
            '{"schema": "gpuconsole.snapshot/1", "tuning": ' + NESTED + "}",
            ("tune", "--verify", "deep.json"),
        ),
    ],
    ids=["report", "diagnose", "scenario", "replay", "tune"],
)
def test_a_file_of_many_levels_is_refused_in_one_line(
    cli: Cli, tmp_path: Path, name: str, text: str, words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(text)
    done = cli(*words)
    assert done.returncode == 2, done.stderr[-500:]
    assert "Traceback" not in done.stderr and done.stderr.count("\n") <= 2


def test_a_wide_snapshot_takes_little_memory() -> None:
    """28 MiB of empty lists in an unknown field took 762 MB."""
    data = b'{"schema": "gpuconsole.snapshot/1", "x": [' + b"[]," * 2**21 + b"[]]}"
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotError, match="missing required field"):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def session_naming(folder: Path, file: str, workers: object = 4) -> Path:
    """A snapshot in which a job has kept `num_workers`, with its DataLoader in `file`."""
    job = {
        "script": "train.py",
        "sites": [{"kind": "loader", "file": file, "line": 1, "function": ""}],
    }
    common = {
        "scenario": "train.py",
        "workload": "job",
        "device": "cpu",
        "state": "finished",
        "job": job,
    }
    runs = [
        {"id": "1", "knobs": {"num_workers": 0}, **common},
        {
            "id": "2",
            "knobs": {"num_workers": workers},
            "changes": {"num_workers": workers},
            **common,
        },
    ]
    whole = {
        "schema": SCHEMA,
        "created": "",
        "gpuconsole": "0",
        "environment": {},
        "trials": [],
        "runs": runs,
    }
    (folder / "s.json").write_text(json.dumps(whole))
    return folder / "s.json"


@pytest.mark.parametrize("kind", ["/dev/zero", "pipe", "large", "line break"])
def test_a_patch_reads_only_source_files_whatever_a_snapshot_names(
    cli_here: Cli, tmp_path: Path, kind: str
) -> None:
    file = kind
    if kind != "/dev/zero":
        file = str(tmp_path / ("a\nb.py" if kind == "line break" else "train.py"))
        os.mkfifo(file) if kind == "pipe" else Path(file).write_text(
            "loader = DataLoader(data)\n" if kind == "line break" else ""
        )
        if kind == "large":
            os.truncate(file, 2**31)
    begun = time.monotonic()
    done = cli_here("report", str(session_naming(tmp_path, file)), "--patch", "p.diff")
    assert done.returncode == 1 and time.monotonic() - begun < 5, done
    assert (
        "not in the patch" in done.stderr
        and "Traceback" not in done.stderr
        and not (tmp_path / "p.diff").exists()
    )


@pytest.mark.parametrize("value", ["4), __import__('os').system('id'", 10**30, -1])
def test_a_patch_holds_only_values_that_a_console_can_have_set(
    cli_here: Cli, tmp_path: Path, value: object
) -> None:
    (tmp_path / "train.py").write_text("loader = DataLoader(data)\n")
    done = cli_here(
        "report",
        str(session_naming(tmp_path, str(tmp_path / "train.py"), value)),
        "--patch",
        "p.diff",
    )
    assert (
        done.returncode == 2 and "num_workers" in done.stderr and not (tmp_path / "p.diff").exists()
    ), done.stderr


def test_a_compressed_recording_of_one_endless_line_takes_no_memory(tmp_path: Path) -> None:
    """284 KB took 600 MB."""
    path = tmp_path / "bomb.jsonl.gz"
    RecordingWriter(tmp_path / "head.jsonl").close()
    with gzip.open(path, "wb", 6) as file:
        file.write((tmp_path / "head.jsonl").read_bytes())
        for _ in range(200):
            file.write(b" " * 2**20)
    assert path.stat().st_size < 300_000
    tracemalloc.start()
    try:
        with pytest.raises(RecordingError, match="line 2 has more than 16 MiB"):
            list(read_recording(path))
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_a_compressed_recording_that_unpacks_to_far_more_than_recordings_do_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuconsole.wire import recording

    assert recording.MIN_BYTES == 32 * 2**20
    # 32 MiB of notes take many seconds to be searched for credentials
    monkeypatch.setattr(recording, "MIN_BYTES", 2**20)
    RecordingWriter(tmp_path / "head.jsonl").close()
    with gzip.open(tmp_path / "bomb.jsonl.gz", "wb") as file:
        file.write((tmp_path / "head.jsonl").read_bytes())
        file.write((b'{"event": "note", "t": 1.0, "text": "' + b"x" * 2**15 + b'"}\n') * 40)
    with pytest.raises(RecordingError, match="a recording of more than 1 MiB is too large"):
        list(read_recording(tmp_path / "bomb.jsonl.gz"))


@pytest.mark.parametrize("damage", ["cut off", "changed", "not compressed"])
def test_a_damaged_compressed_recording_is_refused_in_one_line(
    cli: Cli, tmp_path: Path, damage: str
) -> None:
    RecordingWriter(tmp_path / "head.jsonl").close()
    data = gzip.compress((tmp_path / "head.jsonl").read_bytes() * 50)
    damaged = {
        "cut off": data[:-20],
        "changed": data[:30] + b"\xff" * 20 + data[50:],
        "not compressed": b"x" * 100,
    }[damage]
    (tmp_path / "damaged.jsonl.gz").write_bytes(damaged)
    done = cli("replay", "damaged.jsonl.gz", "--headless")
    assert (
        done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    ), done.stderr


def test_a_recording_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuconsole.wire import recording

    monkeypatch.setattr(recording, "MAX_BYTES", 10_000)
    writer = RecordingWriter(tmp_path / "long.jsonl")
    for n in range(2000):
        writer.write(Processes(float(n), []))
    writer.close()
    with pytest.raises(RecordingError, match="too large to be replayed"):
        list(read_recording(tmp_path / "long.jsonl"))
