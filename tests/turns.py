"""Turns of tests: tests that measure speed run alone, all others at the same time.

A shared lock behind a gate. A test that must run alone keeps the gate closed, so that no other test starts while the running tests end.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

GATE = Path(__file__)
HALL = Path(__file__).with_name("conftest.py")


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with path.open() as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing alone would leave it to a child that has inherited the file


@contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Wait until this test may run beside what runs; beside nothing, if it is to be `alone`."""
    with ExitStack() as hall:
        with _locked(GATE, fcntl.LOCK_EX):
            hall.enter_context(_locked(HALL, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield
