"""Readings that take turns in one thread, and one of them that takes too long."""

from __future__ import annotations

import threading
import time

from gpuconsole.telemetry.nvml.turns import take_turns


def test_all_readings_are_made_in_order_by_one_thread() -> None:
    made: list[tuple[int, int]] = []

    def reading(number: int) -> None:
        made.append((number, threading.get_ident()))

    take_turns([lambda n=n: reading(n) for n in range(64)], 1.0)  # type: ignore[misc]
    assert [number for number, _ in made] == list(range(64))
    assert len({thread for _, thread in made}) == 1 and made[0][1] != threading.get_ident()


def test_a_reading_that_hangs_keeps_its_thread_and_the_others_go_on() -> None:
    released, ended = threading.Event(), threading.Event()
    made: list[str] = []

    def hangs() -> None:
        released.wait(10)
        ended.set()

    began = time.monotonic()
    take_turns([lambda: made.append("a"), hangs, lambda: made.append("b")], 0.05)
    assert made == ["a", "b"] and time.monotonic() - began < 5
    assert not ended.is_set()
    released.set()
    assert ended.wait(5)
    assert made == ["a", "b"]  # nothing is read twice


def test_two_readings_that_hang_cost_their_limits_only() -> None:
    released, made = threading.Event(), list[int]()
    slow = [lambda: released.wait(10) and None] * 2
    took = time.monotonic()
    take_turns([slow[0], lambda: made.append(1), slow[1], lambda: made.append(2)], 0.05)
    took = time.monotonic() - took
    released.set()
    assert made == [1, 2] and 0.1 <= took < 5
