"""Waiting for conditions, with a deadline and without fixed sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

import psutil

POLL_S = 0.02


def wait_until(condition: Callable[[], object], timeout_s: float = 20.0, what: str = "") -> None:
    """Return once `condition` holds; fail the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    never = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or condition}"
        never.wait(POLL_S)


async def until(condition: Callable[[], object], timeout_s: float = 30.0, what: str = "") -> None:
    """The same on an event loop."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(POLL_S)


def gone(pid: int) -> bool:
    """Whether a process is no more (a zombie counts as gone)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def children_that_run(module: str, recursive: bool = False) -> list[psutil.Process]:
    """The children of this process that run a Python module. `recursive`: their children count too.
    A child of an earlier test that has ended has no command line."""
    found = []
    for child in psutil.Process().children(recursive=recursive):
        with contextlib.suppress(psutil.NoSuchProcess):  # ZombieProcess too
            if module in child.cmdline():
                found.append(child)
    return found
