"""A child's end, and what a console leaves behind: no signal to a foreign process, no folder of a
live console deleted."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from gpuconsole.engine.children.child import Child
from gpuconsole.engine.children.pool import WorkerPool
from gpuconsole.engine.children.signals import kill_leftovers
from gpuconsole.engine.children.torchrun import Launch
from tests.no_torch import without_torch
from tests.waiting import until


@pytest.fixture
def group_signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The process groups that were signalled, with the signal; the signals are still sent."""
    sent: list[tuple[int, int]] = []
    killpg = os.killpg

    def recorded(group: int, number: int) -> None:
        sent.append((group, number))
        killpg(group, number)

    monkeypatch.setattr(os, "killpg", recorded)
    return sent


def test_a_child_that_has_ended_is_not_killed_again(group_signals: list[tuple[int, int]]) -> None:
    """Its pid may belong to another program by then, and that program's whole group would be
    killed."""

    async def main() -> None:
        child = Child("gpuconsole.no_such_module", [], lambda event: None, lambda code: None)
        await child.start()
        await child.exited.wait()
        group_signals.clear()
        child.kill()
        assert group_signals == []

    asyncio.run(main())


def test_the_group_of_a_pid_that_was_given_to_another_process_is_left_alone(
    group_signals: list[tuple[int, int]],
) -> None:
    """The pid is reused between the child's end and the clean-up of its group."""
    other = psutil.Popen(["sleep", "60"], start_new_session=True)
    try:
        kill_leftovers(other.pid)
        assert group_signals == []
        assert other.is_running()
    finally:
        other.kill()
        other.wait()


def test_what_a_child_started_and_left_behind_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaves_a_sleeper.py").write_text(
        "import subprocess\nprint(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    async def main() -> None:
        child = Child("leaves_a_sleeper", [], lambda event: None, lambda code: None)
        await child.start()
        await child.exited.wait()
        (line,) = child.last_words
        await until(
            lambda: (
                not psutil.pid_exists(int(line))
                or psutil.Process(int(line)).status() == psutil.STATUS_ZOMBIE
            ),
            5,
        )

    asyncio.run(main())


def test_a_spare_worker_that_dies_is_dropped_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", without_torch(tmp_path)["PYTHONPATH"])

    async def main() -> None:
        pool = WorkerPool(Launch(1), lambda worker, code: None, lambda line: None)
        await pool.warm("choosing")
        assert pool.spare is not None
        await until(lambda: pool.spare is None, 30, "the dead spare is dropped")

    asyncio.run(main())
