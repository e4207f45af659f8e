"""Ctrl-C: a command without a result exits with 130. Commands with results: test_headless,
test_tune, test_calibration."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpuconsole.cli import exits
from tests.conftest import Cli
from tests.waiting import gone, wait_until

COMMANDS = [
    ("sweep", "gemm-peak", "--vary", "matrix_size=512,1024", "--device", "cpu"),
    ("quality", "serve-chat", "--device", "cpu"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_interrupted_before_the_first_result_a_command_exits_with_130(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "gpuconsole", *words]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: "workloads" in str(running(process)), 30, "the worker")
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout) == (130, ""), stderr
    assert "Traceback" not in stderr
    wait_until(lambda: all(gone(child.pid) for child in started), 20, "children gone")


def running(process: subprocess.Popen[str]) -> list[list[str]]:
    """The command lines of the processes that `process` has started."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            found.append(child.cmdline())
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_ends_a_command_in_good_order(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole run that is interrupted: test_headless."""
    monkeypatch.setattr(exits, "_received", [])
    ended: list[bool] = []

    async def command() -> None:
        exits.on_interrupt(lambda: ended.append(True))
        os.kill(os.getpid(), number)
        for _ in range(200):
            if ended:
                return
            await asyncio.sleep(0.01)

    # where a command does not take the signal over, this process lives on
    before = signal.signal(number, lambda *_: None)
    try:
        asyncio.run(command())
    finally:
        signal.signal(number, before)
    assert ended and exits.exit_code() == exits.exit_code("failed") == 128 + number


@pytest.mark.parametrize(
    "imported",
    ["gpuconsole.tui.skeleton", "gpuconsole.model.snapshot", "gpuconsole.diagnosis.engine"],
)
def test_interrupted_while_it_loads_a_command_ends_at_once_without_a_traceback(
    cli: Cli, tmp_path: Path, imported: str
) -> None:
    """An import sends SIGINT to its own process."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {imported!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    done = cli("rules", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
