"""The TCP ports at which processes listen."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Collection

import pytest

from gpuconsole.host import listening
from gpuconsole.host.listening import PERIOD_S, PortReader, listening_ports
from gpuconsole.model.machine import Listener
from tests.fakes.job import http_server
from tests.waiting import wait_until


def test_the_ports_of_a_server_and_of_a_program_that_serves_nothing() -> None:
    child = subprocess.Popen(["sleep", "300"])
    try:
        with http_server() as (server, port):
            wait_until(lambda: listening_ports([server]).get(server), what="the port")
            assert listening_ports([server, child.pid]) == {
                server: (Listener(port),),
                child.pid: (),
            }
    finally:
        child.kill()
        child.wait(10)
    assert listening_ports([child.pid]) == {}


def test_a_connection_that_is_only_open_is_no_port() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
    ):
        assert listening_ports([os.getpid()])[os.getpid()] == (Listener(server.getsockname()[1]),)


@pytest.mark.parametrize(
    ("bound", "host"),
    [("127.0.0.2", "127.0.0.2"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "127.0.0.1")],
)
def test_a_port_has_the_address_at_which_it_is_reached(bound: str, host: str) -> None:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    try:
        server = socket.create_server((bound, 0), family=family)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with server:
        port = server.getsockname()[1]
        assert Listener(port, host) in (listening_ports([os.getpid()])[os.getpid()] or ())


def test_files_that_this_user_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert listening_ports([1]) == {1: None}


def test_ports_are_read_again_for_other_processes_and_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[list[int]] = []
    now = 100.0

    def read_ports(pids: Collection[int]) -> dict[int, tuple[int, ...]]:
        read.append(sorted(pids))
        return {7: (1,)}

    monkeypatch.setattr(listening, "listening_ports", read_ports)
    monkeypatch.setattr("gpuconsole.host.listening.time.monotonic", lambda: now)
    reader = PortReader()

    def ask(*pids: int) -> object:
        found = reader.of(pids)
        assert reader._thread is not None
        reader._thread.join(10)
        return found

    ask(7)
    assert ask(7) == {7: (1,)} == ask(7, 8)
    now += PERIOD_S
    ask(7, 8)
    assert read == [[7], [7, 8], [7, 8]]
