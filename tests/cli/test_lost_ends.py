"""A command whose stdin, stdout or stderr is closed, full, or has lost its reader: nothing that was measured is lost, and no traceback is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONSOLE = (sys.executable, "-m", "gpuconsole")
JOB = (sys.executable, "-c", "print('hello')")


def no_reader() -> int:
    """The writing end of a pipe without a reader, as stderr is after `2>&1 | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("lost", ["no reader", "full"])
def test_a_job_whose_stderr_is_lost_leaves_its_snapshot_and_its_exit_code(tmp_path: Path, lost: str) -> None:
    stderr = no_reader() if lost == "no reader" else os.open("/dev/full", os.O_WRONLY)
    try:
        done = subprocess.run([*CONSOLE, "run", "--headless", "--snapshot", "s.json", "--", *JOB], cwd=tmp_path, stdout=-1, stderr=stderr)
    finally:
        os.close(stderr)
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    assert [run["workload"] for run in json.loads((tmp_path / "s.json").read_bytes())["runs"]] == ["job"]
