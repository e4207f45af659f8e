"""An agent on an open console (`run --control`, `mcp --connect`): the person sees it on the real
screen, and a key takes the control back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpuconsole.cli.main import main
from gpuconsole.mcp import control
from tests.mcp.raw import RawClient
from tests.mcp.test_server import IDLE, STARVED, loads
from tests.pty.terminal import Terminal
from tests.waiting import wait_until


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Terminal]:
    """A console with an idle job."""
    (tmp_path / "idle.py").write_text(IDLE)
    with Terminal(
        "run", "--control", "--device", "cpu", "--", sys.executable, "idle.py", cwd=tmp_path
    ) as terminal:
        terminal.wait_for("idle.py")
        wait_until(lambda: terminal.process.pid in control.open_consoles(), what="the socket")
        job = next(
            child
            for child in psutil.Process(terminal.process.pid).children(recursive=True)
            if child.cmdline()[-1] == "idle.py"
        )
        yield terminal
        with contextlib.suppress(psutil.NoSuchProcess):
            job.kill()  # also the one that a test left


def socket_of(terminal: Terminal) -> Path:
    return control.open_consoles()[terminal.process.pid]


@pytest.mark.slow
@pytest.mark.xdist_group("a job")
def test_the_screen_shows_the_trial_of_the_agent_and_a_key_takes_the_control_back(
    tmp_path: Path,
) -> None:
    shutil.copy(STARVED, tmp_path / "starved.py")
    words = [
        "run",
        "--control",
        "--allow-loader",
        "--device",
        "cpu",
        "--",
        sys.executable,
        "starved.py",
        "end",
    ]
    with Terminal(*words, cwd=tmp_path) as terminal:
        terminal.wait_for("starved.py", "recoverable")
        client = RawClient(tmp_path, "--connect", str(terminal.process.pid))
        client.hello()
        assert client.call("status", wait_s=60)["findings"][0]["rule"] == "input.slow_storage"
        terminal.wait_for("an agent is connected: it waits", "take control")
        client.call("allow", what="loader")
        number = client.send(
            "tools/call", {"name": "try_change", "arguments": {"changes": {"num_workers": 2}}}
        )
        terminal.wait_for("an agent is connected: try_change num_workers=2", "on trial")
        job = next(
            child
            for child in psutil.Process(terminal.process.pid).children(recursive=True)
            if child.cmdline()[-1] == "end"
        )
        wait_until(lambda: loads(job), 30, "the side with two workers")
        terminal.press("c")
        refused = client.answer(number)["result"]
        assert refused["isError"] and refused["content"][0]["text"] == control.TAKEN_BACK
        terminal.wait_for("you have the control: agents are refused")
        assert client.call("status")["error"] == control.TAKEN_BACK
        assert client.call("stop")["error"] == control.TAKEN_BACK
        wait_until(lambda: not loads(job), 30, "the side without workers")
        terminal.press("c")
        terminal.wait_for("an agent is connected: it waits")
        assert client.call("settings", name="num_workers")["settings"][0]["value"] == 0
        client.send(
            "tools/call", {"name": "try_change", "arguments": {"changes": {"num_workers": 2}}}
        )
        wait_until(lambda: loads(job), 30, "the side with two workers")
        client.process.kill()  # in the middle of its trial
        terminal.wait_gone("an agent is connected")
        wait_until(lambda: not loads(job), 30, "the side without workers")
        client.close()
        (tmp_path / "end").touch()
        terminal.wait_for("finished")
        terminal.press("q")
        assert terminal.wait_exit() == 0
    snapshot = json.loads(next(tmp_path.glob("gpuconsole-2*.json")).read_text())
    assert [trial["state"] for trial in snapshot["trials"]] == ["cancelled"] * 2


@pytest.mark.slow
@pytest.mark.xdist_group("a job")
def test_one_agent_at_a_time_and_the_console_outlives_it(console: Terminal, tmp_path: Path) -> None:
    first = RawClient(tmp_path, "--connect")
    first.hello()
    assert first.call("status")["run"] == "idle.py"
    assert "the person has not granted numerics" in first.call("allow", what="numerics")["error"]
    second = RawClient(tmp_path, "--connect")
    assert second.process.wait(20) == 2
    first.process.kill()
    first.process.wait()
    console.wait_gone("an agent is connected")
    third = RawClient(tmp_path, "--connect")
    third.hello()
    assert third.call("devices")["devices"][0]["id"] == "cpu"
    console.wait_for("an agent is connected")
    console.press("q")
    console.wait_for("Leave the job")
    console.press("q")
    assert console.wait_exit() == 0
    assert third.call("status")["error"] == "the console has ended"
    assert third.close() == 0
    assert not list(socket_folder(console))


def socket_folder(terminal: Terminal) -> list[Path]:
    return [
        path
        for path in control.runtime_folder().glob(f"scratch-*-{terminal.process.pid}-*")
        if (path / control.SOCKET).exists()
    ]


@pytest.mark.slow
def test_garbage_on_the_socket_ends_that_connection_alone(
    console: Terminal, tmp_path: Path
) -> None:
    path = socket_of(console)
    status = path.parent.stat()
    assert status.st_mode & 0o777 == 0o700 and path.stat().st_mode & 0o777 == 0o600
    for data in (
        b"x" * (2 << 20),
        b"{}\n",
        b"\xff\n" * 100,
        b'{"type":"call","id":"x"}\n',
        b'{"type":"call","id":1,"tool":"rm","arguments":[]}\n' * 5000,
    ):
        with socket.socket(socket.AF_UNIX) as connection, control.short_path(path) as address:
            wait_until(lambda connection=connection, address=address: welcomed(connection, address))
            connection.settimeout(20)
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
            except ConnectionError:
                pass  # the console has closed it
    client = RawClient(tmp_path, "--connect")
    client.hello()
    assert client.call("status")["state"] in ("starting", "running")
    client.close()


def welcomed(connection: socket.socket, address: str) -> bool:
    """Connect; the console may not have noticed the end of the client before."""
    try:
        connection.connect(address)
    except OSError:
        return True  # connected by a call before
    return b"welcome" in connection.recv(1000)


def test_another_user_is_told_apart_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert control.is_own(ours)
        monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
        assert not control.is_own(ours)


def test_without_a_console_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    for words, line in (
        ("", "--connect: no console is open that was started with --control"),
        ("1", "no console with the pid 1 was started with --control; there are: none"),
        ("--patch p.diff", "--patch goes with a command of your own"),
        ("--device cpu", "--connect goes without --device: the console has its own"),
    ):
        assert main(["mcp", "--connect", *words.split()]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and line in printed.err and printed.err.count("\n") == 1
    with pytest.raises(SystemExit, match="2"):
        main(["mcp", "--connect", "x"])
    assert "x: is no pid" in capsys.readouterr().err
