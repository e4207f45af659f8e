"""A source of metrics: its interface, a source with a fallback for what it cannot report, and a
thread that polls it without delaying others."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from gpuconsole.model.machine import Device
from gpuconsole.wire.readings import (
    DeviceKnown,
    DeviceLost,
    Event,
    Processes,
    Sample,
    SourceState,
    Topology,
    Unavailable,
    Xid,
)

# --- the interface of every source of metrics -----------------------------------------------------

Readings = list[Sample | DeviceKnown | DeviceLost | Topology | Processes | Xid]
Reasons = dict[str, dict[str, str]]

DRIVER_GONE_EXIT = 75
"""The sampler's exit code that asks for a restart: only a new process can load another driver
library. (EX_TEMPFAIL)"""
NOT_YET = "the NVIDIA driver has not answered yet"
"""The reason for a device list without GPUs while the driver is still starting."""


class DriverGone(Exception):
    """The driver was unloaded or replaced, or the number of devices has changed: the source has
    ended."""


class Source(Protocol):
    """A reader of metrics. After every `read` each metric of each device has been in a sample or is
    in `unavailable`.

    `name` is the name on the screen. Another thread may call `under_way` while `read` has not
    returned.
    """

    name: str

    def devices(self) -> list[Device]:
        """The devices of this source; fixed for its lifetime."""

    def prime(self) -> Readings:
        """Take the first of the two readings that a rate needs. Return the values that one looks
        for first, where they need no second reading."""

    def read(self, t: float) -> Readings:
        """The present values with time `t` (CLOCK_MONOTONIC seconds). Rates are over the time since
        the last reading.

        Raises DriverGone.
        """

    def unavailable(self) -> Reasons:
        """After the last `read`: for each device the missing metrics with their reasons."""

    def slow(self) -> str:
        """A description of readings that are slower than requested; otherwise empty."""

    def under_way(self) -> str:
        """A description of the call that has not returned yet; otherwise empty."""


# --- two sources for the same devices -------------------------------------------------------------


class Preferred:
    """The preferred source. While the fallback source provides a value, this source does not report
    a reason for the gap."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.source = source
        self.covered: dict[str, set[str]] = {}
        self.also_missing: Reasons = {}

    def devices(self) -> list[Device]:
        return self.source.devices()

    def prime(self) -> Readings:
        return self.source.prime()

    def read(self, t: float) -> Readings:
        return self.source.read(t)

    def unavailable(self) -> Reasons:
        # another thread replaces these dictionaries
        covered, others = self.covered, self.also_missing
        return {
            device: {
                metric: f"{why}; {others[device][metric]}"
                if metric in others.get(device, {})
                else why
                for metric, why in reasons.items()
                if metric not in covered.get(device, ())
            }
            for device, reasons in self.source.unavailable().items()
        }

    def slow(self) -> str:
        return self.source.slow()

    def under_way(self) -> str:
        return self.source.under_way()


class Fallback:
    """The fallback source. Its values are used only where `first` has none, and each value carries
    the name of this source."""

    def __init__(self, source: Source, first: Preferred) -> None:
        self.name = source.name
        self._source = source
        self._first = first

    def devices(self) -> list[Device]:
        return []

    def prime(self) -> Readings:
        self._source.prime()
        return []

    def read(self, t: float) -> Readings:
        gaps = self._first.source.unavailable()
        readings: Readings = []
        covered: dict[str, set[str]] = {}
        for reading in self._source.read(t):
            if not isinstance(reading, Sample):
                continue
            values = {
                metric: value
                for metric, value in reading.values.items()
                if metric in gaps.get(reading.device, {})
            }
            if values:
                covered[reading.device] = set(values)
                readings.append(Sample(t, reading.device, values, dict.fromkeys(values, self.name)))
        self._first.covered, self._first.also_missing = covered, self._source.unavailable()
        return readings

    def unavailable(self) -> Reasons:
        """Always empty, because the preferred source reports the gaps of both sources."""
        return {}

    def slow(self) -> str:
        """The reason why this source provides no values; otherwise empty."""
        if self._first.covered:
            return self._source.slow()
        return next(
            (why for reasons in self._source.unavailable().values() for why in reasons.values()), ""
        )

    def under_way(self) -> str:
        return self._source.under_way()


# --- polls one source on its own thread at a fixed interval, so that a slow or stuck source does
# not delay other sources ---

FIRST_GAP_S = 0.15  # long enough for a rate over 10 ms clock ticks
MAX_BUSY_SHARE = 0.5
"""Maximum share of the interval that a reading may take. The poller stretches the interval for
slower sources."""
STUCK_S = 2.0
"""A reading that takes longer counts as stuck. Real drivers have delays of some 100 ms."""
MAX_S = 10.0
MIN_READS = 3
_RECENT = 7


class Poller(threading.Thread):
    """Reads `source` every `interval_s` seconds and sends the events. Other threads may call
    `state`.

    The poller calls `after_round` after each round, and `on_gone` with the reason when the source
    has ended.
    """

    def __init__(
        self,
        source: Source,
        interval_s: float,
        send: Callable[[Event], None],
        after_round: Callable[[], None],
        on_gone: Callable[[str], None],
    ) -> None:
        # a thread that hangs in a driver call must not keep the process alive
        super().__init__(name=f"poll-{source.name}", daemon=True)
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
            for event in self._source.prime():
                self._send(event)
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
        """The real time between two rounds in seconds. It is longer than requested when rounds take
        more than half of the interval.

        A single slow round does not stretch the period. The period is at most `MAX_S`.
        """
        took = sorted(self._took)
        typical_s = took[len(took) // 2] if len(took) >= MIN_READS else 0.0
        return max(self._interval_s, min(MAX_S, typical_s / MAX_BUSY_SHARE))

    def state(self) -> SourceState:
        """The present state of the source."""
        now, began = time.monotonic(), self._began
        under_way_s = now - began if began else 0.0
        if under_way_s >= STUCK_S:
            return SourceState(
                now,
                self._source.name,
                self.period_s(),
                under_way_s,
                self._source.under_way(),
                self._missed,
            )
        return SourceState(
            now, self._source.name, self.period_s(), 0.0, self._source.slow(), self._missed
        )

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
        """Send the reasons of each device when they have changed. An empty dictionary withdraws
        earlier reasons."""
        for device, now_missing in reasons.items():
            if self._sent.get(device, {}) != now_missing:
                self._sent[device] = dict(now_missing)
                self._send(
                    Unavailable(t=time.monotonic(), device=device, reasons=self._sent[device])
                )


def next_time(due: float, interval_s: float, now: float) -> float:
    """The first time after `now` on the schedule of `due`. Missed times are skipped."""
    missed = max(0, int((now - due) // interval_s))
    return due + (missed + 1) * interval_s
