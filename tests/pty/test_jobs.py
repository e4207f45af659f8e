"""The jobs of real processes on a fake driver, on the real screen."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.job import http_server, sleeper, torchrun
from tests.fakes.nvml.build import Script
from tests.no_torch import without_torch
from tests.pty.terminal import Terminal


@pytest.fixture
def zombie() -> Iterator[int]:
    """A process that has ended, and whose end nobody has read."""
    child = subprocess.Popen(["sleep", "300"])
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child.pid
    child.wait(10)


def test_the_jobs_and_states_of_real_processes(
    fake_library: Path, tmp_path: Path, zombie: int
) -> None:
    with torchrun(tmp_path) as (launcher, ranks), sleeper() as stopped, http_server() as served:
        os.kill(stopped, signal.SIGSTOP)
        server, port = served
        listed = {0: ranks[0], 1: ranks[1], 2: server, 3: zombie, 4: stopped}
        script = Script(
            tmp_path / "machine.txt",
            "gpus 6",
            "gpu 5 utilization_pct 0",
            "gpu 5 gpm 2 0",
            "gpu 5 memory_used_bytes 1e6",
            *(f"gpu {gpu} process {pid} compute 50e9 10" for gpu, pid in listed.items()),
        )
        environment = {**script.environment(fake_library), **without_torch(tmp_path)}
        with Terminal("--interval", "0.2", cwd=tmp_path, env=environment) as terminal:
            terminal.wait_for(f"{zombie} ", "zombie: sleep", "stopped: sleep")
            terminal.press("j")
            page = terminal.wait_for("Jobs on this machine", f"listens :{port}", "gpu:0-1")
            row = next(row for row in page.splitlines() if f" {launcher} " in f" {row}")
            assert "torchrun" in row and "93.1 GiB" in row
            terminal.press("/", *str(port), "enter")
            terminal.wait_for(f"gpuconsole watch http://127.0.0.1:{port}")
            terminal.press("enter")
            terminal.wait_for("1 of 5 on 1 device", "http.server")
            terminal.press("I", "y")
            terminal.wait_for(f"SIGINT sent to {server}")
            terminal.press("escape")
            terminal.wait_for("filter: ")
            terminal.press("escape")
            terminal.wait_gone("filter: ")
            terminal.press("escape")
            terminal.wait_for("device  state")
            terminal.press("up", "G", "enter")
            terminal.wait_for("Processes", "No process holds gpu:5.")
            terminal.press("escape")
            terminal.wait_for("device  state")
            terminal.press("i")
            terminal.wait_for("gpu.hbm_used_bytes", "gpu:5")
            terminal.press("escape")
            terminal.wait_for("device  state")
            terminal.press("q")
            assert terminal.wait_exit() == 0
