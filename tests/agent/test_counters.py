"""The counters of a process, and what counting does to it."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest

from gpuconsole.agent.counters import ProcessCounters


@pytest.fixture
def counters() -> Iterator[ProcessCounters]:
    made = ProcessCounters()
    yield made
    made.close()


class Interrupted(Exception):
    pass


def interrupt(*_: object) -> None:
    raise Interrupted


def test_collections_and_their_seconds_are_counted(counters: ProcessCounters) -> None:
    before = counters.read()
    gc.collect()
    gc.collect()
    after = counters.read()
    assert after["gc.collections"] - before["gc.collections"] >= 2
    assert 0 < after["gc.pause_s"] - before["gc.pause_s"] < 10


def test_an_exception_of_a_signal_handler_that_comes_during_a_collection_arrives(
    counters: ProcessCounters,
) -> None:
    # a collection takes many times as long as the timer
    objects = [[number] for number in range(500_000)]
    before = signal.signal(signal.SIGALRM, interrupt)
    arrived = 0
    try:
        for _ in range(10):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                gc.collect()
            except Interrupted:
                arrived += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(objects) == 500_000 and arrived == 10


def test_the_callback_is_gone_afterwards() -> None:
    before = list(gc.callbacks)
    counters = ProcessCounters()
    assert len(gc.callbacks) == len(before) + 1
    counters.close()
    assert gc.callbacks == before
