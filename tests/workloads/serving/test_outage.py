"""What counts as an outage, by times alone. `tests/workloads/serving/test_generator.py` has the
same with sockets."""

from __future__ import annotations

from gpuconsole.workloads.serving.load.client import (
    BROKE_OFF,
    CANNOT_CONNECT,
    REMEMBERED_S,
    OutageTracker,
)

TICK_S = 0.25


class Clock:
    """An outage detector with a tick every TICK_S."""

    def __init__(self) -> None:
        self.t, self.it = 100.0, OutageTracker(100.0)
        self.it.opened(100.0)

    def wait(
        self, seconds: float, *, waiting: int = 8, streams: int = 8, patient: bool = False
    ) -> str:
        """The reason of an outage after so many seconds without a token; all requests are as old as
        the detector."""
        end = self.t + seconds
        while self.t < end:
            self.t += TICK_S
            self.it.tick(self.t, waiting, 100.0, streams, patient=patient)
        return self.it.why


def test_silence_counts_from_four_seconds_on_and_from_twice_what_is_normal() -> None:
    clock = Clock()
    clock.wait(3.5)
    clock.it.token(clock.t)
    assert not clock.wait(6.75), "twice 3.5 s"
    assert clock.wait(0.5) == "8 requests wait without an answer"
    assert clock.it.token(clock.t) and clock.it.since is None
    for _ in range(round(REMEMBERED_S)):
        clock.wait(1.0)
        clock.it.token(clock.t)
    assert clock.wait(4.5) == "8 requests wait without an answer", "older silences are forgotten"


def test_the_time_in_which_a_server_was_gone_is_no_normal_silence() -> None:
    clock = Clock()
    clock.it.failed(clock.t, CANNOT_CONNECT + "connection refused", 0)
    clock.wait(30.0, waiting=0, streams=0)
    assert clock.it.since == 100.0
    clock.it.opened(clock.t)
    clock.wait(3.0, waiting=1, streams=0)
    clock.it.token(clock.t)
    assert clock.wait(4.5) == "8 requests wait without an answer"


def test_one_broken_connection_among_others_that_answer_is_no_outage() -> None:
    clock = Clock()
    clock.it.token(clock.t)
    clock.it.failed(clock.t, BROKE_OFF + "the server reset the connection", 7)
    assert not clock.wait(0.5, streams=7)


def test_failures_beside_requests_that_have_waited_for_long_are_not_all() -> None:
    slow = Clock()
    for _ in range(14):
        slow.it.failed(slow.t, "HTTP 500: no", 4)
        assert not slow.wait(TICK_S), "the requests that wait can still be answered"
    assert slow.wait(1.0) == "every request fails: HTTP 500: no", "after 4 s without a token"


def test_a_probe_and_a_generator_that_stood_still_are_no_silence() -> None:
    clock = Clock()
    assert not clock.wait(20.0, patient=True)
    clock.t += 60.0
    assert not clock.wait(TICK_S), "what arrived meanwhile is not read yet"
