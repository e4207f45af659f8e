"""The memory that the workers of a DataLoader have for themselves: told by each worker, added up by the training process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuconsole.agent.hooks.evidence import workers_memory as module
from gpuconsole.agent.hooks.evidence.workers_memory import Teller, WorkersMemory, told_folder

MB = 2**20


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    monkeypatch.setattr(module, "MOST_COST", float("inf"))


def child(folder: Path, told: int, goes_on: int) -> int:
    """A forked process that writes 16 MB of pages which it shares with its parent, and tells its memory before and after."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        teller = Teller(str(folder), os.getppid())
        teller.look()
        os.write(told, b".")
        os.read(goes_on, 1)
        for at in range(0, len(shared), 4096):
            shared[at] = 1
        teller.look()
        os.write(told, b".")
        os.read(goes_on, 1)
        code = 0
    finally:
        os._exit(code)


shared = bytearray()


@pytest.mark.skipif(not os.path.exists(module.ROLLUP), reason="the kernel has no smaps_rollup")
def test_pages_that_a_worker_copies_count_and_shared_ones_do_not(tmp_path: Path) -> None:
    shared[:] = b"." * (16 * MB)
    memory = WorkersMemory()
    told, tell = os.pipe()
    hold, go = os.pipe()
    assert memory.read(str(tmp_path), [os.getpid()]) is None, "nobody has told its memory yet"
    pid = child(tmp_path, tell, hold)
    os.read(told, 1)
    before = memory.read(str(tmp_path), [pid])
    os.write(go, b".")
    os.read(told, 1)
    after = memory.read(str(tmp_path), [pid])
    assert memory.read(str(tmp_path), [pid, 1]) is None, "one of the two has not told its memory"
    os.write(go, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert before is not None and after is not None
    assert 15 * MB < after - before < 20 * MB
    assert memory.read(str(tmp_path), [1]) is None and not os.listdir(told_folder(str(tmp_path), os.getpid())), (
        "what a worker told goes with it"
    )
    for descriptor in (told, tell, hold, go):
        os.close(descriptor)


def test_nothing_is_told_where_nobody_asks_and_nothing_stays(tmp_path: Path) -> None:
    Teller(str(tmp_path), os.getpid()).look()
    assert not list(tmp_path.iterdir())
    memory = WorkersMemory()
    memory.read(str(tmp_path), [os.getpid()])
    Teller(str(tmp_path), os.getpid()).look()
    assert (memory.read(str(tmp_path), [os.getpid()]) or 0) > MB
    forked = os.fork()
    if not forked:
        memory.close()
        os._exit(0)
    os.waitpid(forked, 0)
    assert list(tmp_path.iterdir()), "a forked child leaves the folder of its parent alone"
    memory.close()
    assert not list(tmp_path.iterdir())
