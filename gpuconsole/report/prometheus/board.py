"""The newest value of every metric of every device, for whoever publishes them.

A value stands until its reader takes it back or falls silent: what changes seldom is read seldom, so the age of a value alone
says nothing, but a reader that still answers for the device would have told.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable

from gpuconsole.model.machine.device import Device
from gpuconsole.model.text import visible
from gpuconsole.wire.events import AnyEvent, DeviceLost, Devices, Hello, Sample, SourceState, Unavailable, Xid

STALE_S, STALE_PERIODS = 5.0, 3
USUAL = ""
"""The reader of a device that needs no name; another one that fills in what it cannot tell has one."""


class Board:
    """A fold over the sampler's events. `take` is the only way in; other threads hold `lock` while they look."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.driver = ""
        self.last_seen = clock()
        self.down = "no sample has come yet"
        self.restarts = 0
        self.sources: dict[str, SourceState] = {}
        self._interval_s = interval_s
        self._forget()

    def _forget(self) -> None:
        self.devices: dict[str, Device] = {}
        self.unavailable: dict[str, dict[str, str]] = {}
        self.lost: dict[str, tuple[float, str]] = {}
        self.xids: dict[str, int] = {}
        self._named = 0.0
        self._values: dict[str, dict[str, tuple[str, float]]] = {}  # with its reader
        self._sampled: dict[str, dict[str, float]] = {}  # by device and reader

    def take(self, event: AnyEvent) -> None:
        with self.lock:
            self.last_seen = self.clock()
            match event:
                case Hello():
                    self.sources = {}
                case Devices():
                    # Not at Hello: until the new sampler knows its devices, what the last one said of a lost GPU stands.
                    self._forget()
                    self.devices = {device.id: device for device in event.devices}
                    self.driver, self._named = event.driver or "", event.t
                    if event.reason:
                        self.unavailable["gpu"] = {"gpu.*": event.reason}
                case Sample():
                    self._sample(event)
                case Unavailable():
                    self.unavailable[event.device] = dict(event.reasons)
                    for metric in event.reasons:
                        self._values.get(event.device, {}).pop(metric, None)
                case DeviceLost():
                    self.lost[event.device] = (event.t, event.reason)
                    for device in [one for one in self._values if event.device in (one, parent(one))]:
                        del self._values[device]
                case Xid():
                    self.xids[event.device] = event.code
                case SourceState():
                    self.sources[event.source] = event

    def starting(self) -> None:
        """A sampler is about to be started: the silence before it does not count."""
        with self.lock:
            self.last_seen = self.clock()

    def stopped(self, reason: str) -> None:
        """The sampler is no more; what it said goes stale by itself."""
        with self.lock:
            self.down = reason
            self.restarts += 1

    def health(self) -> str:
        """Why samples are not fresh, in one line; empty when they are."""
        with self.lock:
            now = self.clock()
            if self.down:
                return self.down
            if (silent := self.silence(now)) > self.stale_s:
                return f"the sampler has said nothing for {silent:.0f} s"
            source, stuck_s = self._longest_stuck(now)
            stuck = f"{source} has not answered for {stuck_s:.0f} s" if source else ""
            if stuck and (detail := self.sources[source].detail):
                stuck += f": {visible(detail)}"
            for device in self.devices:
                sampled = self.sampled_at(device)
                age = now - (self._named if sampled is None else sampled)
                if age > self.stale_s and device not in self.lost:
                    return f"the newest sample of {device} is {age:.0f} s old" + (f"; {stuck}" if stuck else "")
            return stuck if stuck_s > self.stale_s else ""

    def copied(self) -> Board:
        """The board as it stands, to be read at leisure: whoever feeds it must not wait for a scrape."""
        with self.lock:
            other = copy.copy(self)
            other.lock = threading.Lock()
            other.sources, other.devices, other.lost, other.xids = dict(self.sources), dict(self.devices), dict(self.lost), dict(self.xids)
            other.unavailable = {device: dict(reasons) for device, reasons in self.unavailable.items()}
            other._values = {device: dict(values) for device, values in self._values.items()}
            other._sampled = {device: dict(readers) for device, readers in self._sampled.items()}
        return other

    # --- with the lock held ---------------------------------------------------------------------------------

    @property
    def stale_s(self) -> float:
        """How old the newest sample of a device may be."""
        return max(STALE_S, STALE_PERIODS * max([self._interval_s, *(state.period_s for state in self.sources.values())]))

    def silence(self, now: float) -> float:
        return now - self.last_seen

    @staticmethod
    def stuck_s(state: SourceState, now: float) -> float:
        """A source that was stuck when it last said so still is, and longer by now."""
        return state.stuck_s + (now - state.t) if state.stuck_s else 0.0

    def sampled_at(self, device: str, reader: str = USUAL) -> float | None:
        """When `reader` last told something of the device. Links are read less often than the GPU that they are of."""
        times = [self._sampled[one][reader] for one in (device, parent(device)) if reader in self._sampled.get(one, {})]
        return max(times, default=None)

    def reader(self, device: str, metric: str) -> str | None:
        """Who told the metric; None: nobody."""
        return self._values.get(device, {}).get(metric, (None, 0.0))[0]

    def fresh(self, now: float) -> dict[str, dict[str, float]]:
        """By device and metric, the values whose readers still answer."""
        oldest = now - self.stale_s
        found: dict[str, dict[str, float]] = {}
        for device, values in self._values.items():
            answering = {reader for reader in self._sampled[device] if (self.sampled_at(device, reader) or -math.inf) >= oldest}
            found[device] = {metric: value for metric, (reader, value) in values.items() if reader in answering}
        return found

    def _sample(self, event: Sample) -> None:
        self.down = ""
        others = set(event.sources.values())
        reader = others.pop() if len(others) == 1 and event.sources.keys() == event.values.keys() else USUAL
        lost = self.lost.get(event.device) or self.lost.get(parent(event.device))
        if lost and (event.t <= lost[0] or reader != USUAL):
            return  # the rest of the round in which it was lost, or another reader's last memory of it
        if event.values:
            self.lost.pop(event.device, None)
        self._sampled.setdefault(event.device, {})[reader] = event.t
        self._values.setdefault(event.device, {}).update({metric: (reader, value) for metric, value in event.values.items()})
        # Readers of one device tell on threads of their own: a value may overtake the news that it is no longer missing.
        for metric in event.values:
            self.unavailable.get(event.device, {}).pop(metric, None)

    def _longest_stuck(self, now: float) -> tuple[str, float]:
        stuck = {name: self.stuck_s(state, now) for name, state in self.sources.items() if state.stuck_s}
        return max(stuck.items(), key=lambda one: one[1], default=("", 0.0))


def parent(device: str) -> str:
    """The GPU that a link or a MIG slice is of; any other device is its own."""
    return device.partition("/")[0]
