"""The end of a worker's process group after the death of the console: SIGTERM first, SIGKILL soon
after, and nobody left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.waiting import gone, wait_until

CLEANS = """
import os, signal, sys, time
def clean(number, frame):
    time.sleep(0.3)
    os.remove(sys.argv[1])
    os._exit(0)
signal.signal(signal.SIGTERM, clean)
open(sys.argv[1], "w").close()
time.sleep(60)
"""
IGNORES = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(60)
"""
WORKER = """
import subprocess, sys, threading
from gpuconsole.wire.channel import ChildChannel, kill_own_group
fd, folder, main_thread, *children = sys.argv[1:]
channel = ChildChannel(int(fd))
started = [subprocess.Popen([sys.executable, "-c", code, f"{folder}/{name}"]) for name,
    code in zip(("cleans", "ignores"), children)]
channel.listen(lambda command: None, kill_own_group)
if main_thread != "waits":  # it ends as soon as its server has ended
    started[0].wait()
    if main_thread == "fails":
        raise SystemExit(1)
    channel.end(0)
threading.Event().wait()
"""
CONSOLE = """
import socket, subprocess, sys, time
ours, theirs = socket.socketpair()
words = [sys.executable, "-c", sys.argv[1], str(theirs.fileno()), *sys.argv[2:]]
print(subprocess.Popen(words, pass_fds=[theirs.fileno()], start_new_session=True).pid, flush=True)
theirs.close()
time.sleep(60)
"""
LIMIT_S = 4.0


def started(
    folder: Path, *children: str, main_thread: str = "waits"
) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A console, and its worker with the worker's children."""
    words = [sys.executable, "-c", CONSOLE, WORKER, str(folder), main_thread, *children]
    console = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert console.stdout is not None
    worker = psutil.Process(int(console.stdout.readline()))
    names = ("cleans", "ignores")[: len(children)]
    wait_until(
        lambda: all((folder / name).exists() for name in names), 20, "the children of the worker"
    )
    return console, [worker, *worker.children(recursive=True)]


@pytest.mark.parametrize("main_thread", ["waits", "ends", "fails"])
def test_a_child_can_clean_up_and_one_that_ignores_sigterm_is_killed(
    tmp_path: Path, main_thread: str
) -> None:
    console, processes = started(tmp_path, CLEANS, IGNORES, main_thread=main_thread)
    assert len(processes) == 3
    try:
        begun = time.monotonic()
        os.kill(console.pid, signal.SIGKILL)
        wait_until(
            lambda: all(gone(one.pid) for one in processes),
            LIMIT_S,
            "the end of the worker and of its children",
        )
        assert not (tmp_path / "cleans").exists(), (
            "SIGTERM came first, and there was time to clean up"
        )
        assert time.monotonic() - begun > 1.5, "the child that ignores SIGTERM had its time too"
    finally:
        end(console, processes)


def test_a_worker_whose_children_end_on_sigterm_does_not_wait_longer(tmp_path: Path) -> None:
    console, processes = started(tmp_path, CLEANS)
    try:
        begun = time.monotonic()
        os.kill(console.pid, signal.SIGKILL)
        wait_until(
            lambda: all(gone(one.pid) for one in processes),
            LIMIT_S,
            "the end of the worker and of its child",
        )
        assert time.monotonic() - begun < 1.5 and not (tmp_path / "cleans").exists()
    finally:
        end(console, processes)


def end(console: subprocess.Popen[str], processes: list[psutil.Process]) -> None:
    console.kill()
    console.wait()
    for one in processes:
        if one.is_running():
            one.kill()
