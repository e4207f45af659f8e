"""`gpuconsole run --headless` on a loop whose workers read behind one lock: the finding names the
lock with its line, and suggests no workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.agent.test_own_job import PROGRAMS, watched
from tests.matrix import matrix

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("a job")]


@pytest.mark.parametrize("kind", matrix(["lock", "flock", "free"], in_ci=("lock", "free")))
def test_a_lock_that_all_workers_take_is_named(kind: str, tmp_path: Path) -> None:
    ran = watched(tmp_path, sys.executable, str(PROGRAMS / "locked.py"), kind, "12")
    assert ran.code == 0 and ran.out == "done\n", ran.err
    finding = next(
        finding
        for finding in ran.run["findings"]
        if finding["state"] == "fires" and finding["rule"].startswith("input.")
    )
    if kind == "free":
        assert (
            finding["rule"] == "input.slow_storage"
            and "num_workers" in finding["suggestions"][0]["changes"]
        )
        return
    assert finding["rule"] == "input.shared_lock" and not finding["suggestions"], (
        finding,
        ran.run["unavailable"],
    )
    takes = {
        "lock": "            with self.lock:",
        "flock": "            fcntl.flock(file, fcntl.LOCK_EX)",
    }[kind]
    line = (PROGRAMS / "locked.py").read_text().splitlines().index(takes) + 1
    assert f"at locked.py:{line} (" in finding["summary"]
