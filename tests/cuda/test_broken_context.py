"""A kernel fails an assertion: from then on each call of CUDA fails, also those of the agent. The
job ends as without the console, and the console keeps what it has measured."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.conftest import Machines
from tests.matrix import matrix

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "programs" / "asserting.py"
OWN_FRAMES = re.compile(r'  File "<gpuconsole.*\n')


KINDS = [("label", 1), ("assert", 1), ("caught", 3), ("pinned", -signal.SIGABRT)]


@pytest.mark.parametrize(
    ("kind", "code"), matrix(KINDS, in_ci=[("assert", 1), ("pinned", -signal.SIGABRT)])
)
def test_a_job_ends_as_without_the_console_and_its_summary_is_written(
    kind: str, code: int, simulated: Machines, tmp_path: Path
) -> None:
    machine = simulated("card h100", "values cpu")
    job, environment = (
        (sys.executable, str(PROGRAM), kind),
        machine.environment(OMP_NUM_THREADS="1"),
    )
    alone = subprocess.run(
        job, env=environment, capture_output=True, text=True, timeout=270, check=False, cwd=tmp_path
    )
    assert alone.returncode == code, alone.stderr
    files = ("--snapshot", str(tmp_path / "x.json"), "--summary", str(tmp_path / "summary"))
    command = (sys.executable, "-m", "gpuconsole", "run", "--headless", *files, "--", *job)
    watched = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
        cwd=tmp_path,
    )
    assert (watched.returncode, watched.stdout) == (alone.returncode, alone.stdout)
    assert OWN_FRAMES.sub("", watched.stderr) == alone.stderr
    (run,) = json.loads((tmp_path / "x.json").read_text())["runs"]
    assert run["state"] == "failed"
    summary = (tmp_path / "summary").read_text()
    assert "on gpu:0  failed" in summary
    # torch frees page-locked memory of the loader: an exception in a destructor
    if kind == "pinned":
        assert "terminate called" in alone.stderr and "the job was ended by SIGABRT" in summary
        return
    assert run["summary"]["steps"] >= 50
    assert f"the job ended with exit code {code}" in summary
    assert ("device-side assert triggered" in alone.stderr) == (kind != "caught")
