"""The connection of an agent gives its descriptors back, where they are still its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuconsole.agent.hooks.connection import DOORBELL, Connection


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture
def console(tmp_path: Path) -> Iterator[socket.socket]:
    (tmp_path / DOORBELL).write_bytes(bytes(8))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        yield server


@pytest.mark.parametrize("gone", [False, True])
def test_a_closed_connection_has_no_descriptors(console: socket.socket, gone: bool) -> None:
    before = descriptors()
    connection = Connection(console.getsockname())
    with console.accept()[0] as theirs:
        assert len(descriptors() - before) == 3, "the socket, the doorbell, and the console's end"
        if gone:
            theirs.close()
            connection.receive(lambda command: None)
            assert connection.gone
        connection.close()
    assert descriptors() == before
    connection.close()
    assert not connection.is_ours()


def test_a_descriptor_that_a_file_of_the_program_has_taken_stays_open(
    console: socket.socket, tmp_path: Path
) -> None:
    connection = Connection(console.getsockname())
    number = connection._socket.fileno()
    with (tmp_path / "of the program").open("wb") as file:
        os.dup2(file.fileno(), number)
        connection.close()
        os.write(number, b"still open")
        os.close(number)
    assert connection.lost and (tmp_path / "of the program").read_bytes() == b"still open"
