"""The private memory of the workers of a DataLoader, as the console reads it from /proc."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuconsole.engine.children import host_memory
from gpuconsole.engine.children.host_memory import WorkersMemory, private_bytes, workers_of
from tests.waiting import wait_until

MIB = 2**20


@pytest.fixture
def worker() -> Iterator[int]:
    """A child with the name of a worker, which holds 64 MiB of its own."""
    pid = os.fork()
    if not pid:
        held = bytearray(os.urandom(MIB) * 64)
        Path("/proc/self/comm").write_text(host_memory.NAME)
        while held:
            time.sleep(1)
    yield pid
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_a_child_with_the_name_of_a_worker_counts_with_what_it_shares_with_nobody(
    worker: int,
) -> None:
    wait_until(lambda: workers_of(os.getpid()) == [worker], 10, "the child has its name")
    assert 64 * MIB <= (private_bytes(worker) or 0.0) < 1000 * MIB


def test_a_reading_is_known_once_and_nothing_waits_for_it(worker: int) -> None:
    wait_until(lambda: workers_of(os.getpid()) == [worker], 10, "the child has its name")

    async def read() -> list[dict[str, float]]:
        memory = WorkersMemory(os.getpid())
        taken = [memory.take()]
        while not taken[-1]:
            await asyncio.sleep(0.01)
            taken.append(memory.take())
        return [*taken, memory.take()]

    first, *_, known, after = asyncio.run(asyncio.wait_for(read(), 10))
    assert first == after == {} and known[host_memory.SIGNAL] >= 64 * MIB


def test_a_process_without_workers_and_one_that_has_ended_have_no_figure() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert workers_of(pid) == [] and private_bytes(pid) is None
