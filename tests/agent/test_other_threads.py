"""`gpuconsole run --headless` on a loop beside another thread of the program: a thread that
computes in Python is named, others are not."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from gpuconsole.agent.hooks import sampler as of_agent
from gpuconsole.agent.hooks.sampler import OtherThreads, runs
from gpuconsole.model import stacks
from tests.agent.test_own_job import PROGRAMS, watched
from tests.matrix import matrix
from tests.waiting import wait_until


@pytest.mark.slow
@pytest.mark.rates
@pytest.mark.parametrize("kind", matrix(["python", "numpy", "sleeps"], in_ci=("python",)))
def test_a_thread_that_computes_in_python_is_named_with_its_function(
    kind: str, tmp_path: Path
) -> None:
    ran = watched(tmp_path, sys.executable, str(PROGRAMS / "threaded.py"), kind, "12")
    assert ran.code == 0, ran.err
    finding = next(finding for finding in ran.run["findings"] if finding["rule"] == "host.gil")
    assert finding["state"] == ("fires" if kind == "python" else "clear"), finding
    if kind == "python":
        assert "in_python at threaded.py:" in finding["summary"]
        assert finding["recoverable_ratio"] > 0.15
        assert ran.run["findings"][0]["rule"] == "host.gil"


def test_only_a_thread_that_computes_is_busy_and_one_that_waits_for_the_lock_does_not_run() -> None:
    over = threading.Event()

    def computes() -> None:
        while not over.is_set():
            sum(range(100))

    busy, sleeps = threading.Thread(target=computes), threading.Thread(target=over.wait)
    others = OtherThreads()
    try:
        busy.start()
        sleeps.start()

        def found() -> bool:
            others.look({threading.get_ident()})
            time.sleep(0.2)
            others.look({threading.get_ident()})
            return bool(others.busy)

        wait_until(found, 10.0)
        assert busy.ident is not None and others.busy.keys() == {busy.ident}
        assert not runs(others.busy[busy.ident]), "it needs the lock, which this thread holds"
    finally:
        over.set()
        busy.join()
        sleeps.join()
    others.look({threading.get_ident()})
    assert not others.busy


def test_both_sides_have_the_same_name_for_stacks_of_other_threads() -> None:
    assert of_agent.THREAD == stacks.THREAD
