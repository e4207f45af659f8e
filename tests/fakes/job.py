"""Processes as jobs start them, for a fake driver that lists their pids."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.waiting import wait_until

LAUNCHER = """
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) for _ in range(2)]
print(*[rank.pid for rank in ranks], flush=True)
sys.stdin.read()
for rank in ranks:
    rank.kill()
    rank.wait()
"""
"""A program that starts two ranks, until its stdin ends."""
SHELL = "sleep 300 & echo $!; cat > /dev/null; kill -9 $!"


@contextlib.contextmanager
def torchrun(folder: Path) -> Iterator[tuple[int, list[int]]]:
    """A program with the name of torchrun and its ranks: their pids."""
    script = folder / "torchrun"
    script.write_text(LAUNCHER)
    command = [sys.executable, str(script), "--nproc-per-node", "2", "train.py"]
    with _until_left(command) as (process, line):
        yield process.pid, [int(word) for word in line.split()]


@contextlib.contextmanager
def sleeper() -> Iterator[int]:
    """A process that a line of a shell has started: a job of its own."""
    with _until_left(["sh", "-c", SHELL]) as (_, line):
        sleep = psutil.Process(int(line))
        wait_until(lambda: sleep.cmdline() == ["sleep", "300"], what="the end of the fork")
        yield sleep.pid


@contextlib.contextmanager
def http_server() -> Iterator[tuple[int, int]]:
    """An HTTP server that a line of a shell has started, below the ports that the kernel gives: its
    pid and its port."""
    port = _free_port()
    line = (
        f"{sys.executable} -m http.server -b 127.0.0.1 {port} & echo $!; cat > /dev/null; kill $!"
    )
    with _until_left(["sh", "-c", line]) as (_, said):
        yield int(said), port


@contextlib.contextmanager
def _until_left(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of a command and the first line that it prints; its stdin ends at the end."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def _free_port() -> int:
    for port in range(20_000 + os.getpid() % 9000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")
