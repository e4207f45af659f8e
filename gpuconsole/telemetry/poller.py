"""Polls one source on its own thread at a fixed interval, so that a slow or stuck source does not delay other sources."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median

from gpuconsole.telemetry.source import DriverGone, Reasons, Source
from gpuconsole.wire.events import Event, SourceState, Unavailable

FIRST_GAP_S = 0.15  # long enough for a rate over 10 ms clock ticks
MOST_BUSY = 0.5
"""Maximum share of the interval that a reading may take. The poller stretches the interval for slower sources."""
STUCK_S = 2.0
"""A reading that takes longer counts as stuck. Real drivers have delays of some 100 ms."""
LONGEST_S = 10.0
ENOUGH = 3
_RECENT = 7


class Poller(threading.Thread):
    """Reads `source` every `interval_s` seconds and sends the events. Other threads may call `state`.

    The poller calls `after_round` after each round, and `on_gone` with the reason when the source has ended.
    """

    def __init__(
        self,
        source: Source,
        interval_s: float,
        send: Callable[[Event], None],
        after_round: Callable[[], None],
        on_gone: Callable[[str], None],
    ) -> None:
        super().__init__(name=f"poll-{source.name}", daemon=True)  # a thread that hangs in a driver call must not keep the process alive
        self._source = source
        self._interval_s = interval_s
        self._send = send
        self._after_round = after_round
        self._on_gone = on_gone
        self._sent: Reasons = {}
        self._began = 0.0
        self._took: deque[float] = deque(maxlen=_RECENT)
        self._missed = 0

    def run(self) -> None:
        self._began = time.monotonic()
        try:
            self._source.prime()
            self._began = 0.0
            due = time.monotonic() + FIRST_GAP_S
            while True:
                time.sleep(max(0.0, due - time.monotonic()))
                self._round()
                following = next_time(due, self.period_s(), time.monotonic())
                self._missed += max(0, round((following - due) / self._interval_s) - 1)
                due = following
        except DriverGone as gone:
            self._on_gone(str(gone))

    def period_s(self) -> float:
        """The real time between two rounds in seconds. It is longer than requested when rounds take more than half of the interval.

        A single slow round does not stretch the period. The period is at most `LONGEST_S`.
        """
        typical_s = median(self._took) if len(self._took) >= ENOUGH else 0.0
        return max(self._interval_s, min(LONGEST_S, typical_s / MOST_BUSY))

    def state(self) -> SourceState:
        """The present state of the source."""
        now, began = time.monotonic(), self._began
        under_way_s = now - began if began else 0.0
        if under_way_s >= STUCK_S:
            return SourceState(now, self._source.name, self.period_s(), under_way_s, self._source.under_way(), self._missed)
        return SourceState(now, self._source.name, self.period_s(), 0.0, self._source.slow(), self._missed)

    def _round(self) -> None:
        self._began = t = time.monotonic()
        readings = self._source.read(t)
        self._tell_unavailable(self._source.unavailable())
        for event in readings:
            self._send(event)
        self._took.append(time.monotonic() - t)
        self._began = 0.0
        self._after_round()

    def _tell_unavailable(self, reasons: Reasons) -> None:
        """Send the reasons of each device when they have changed. An empty dictionary withdraws earlier reasons."""
        for device, now_missing in reasons.items():
            if self._sent.get(device, {}) != now_missing:
                self._sent[device] = dict(now_missing)
                self._send(Unavailable(t=time.monotonic(), device=device, reasons=self._sent[device]))


def next_time(due: float, interval_s: float, now: float) -> float:
    """The first time after `now` on the schedule of `due`. Missed times are skipped."""
    missed = max(0, int((now - due) // interval_s))
    return due + (missed + 1) * interval_s
