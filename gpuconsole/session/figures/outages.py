"""The times in which a model server did not answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from gpuconsole.model.run import Step
from gpuconsole.wire.events import Requests

MOST_OUTAGES = 1000


class Outage(msgspec.Struct, frozen=True):
    """A time without an answer of the server, in seconds on the clock of the events. `ended`: None while the outage lasts. `why`: the cause."""

    begun: float
    ended: float | None
    why: str


class Outages:
    """The outages of a run, from the messages of the load generator."""

    def __init__(self) -> None:
        self._all: deque[Outage] = deque(maxlen=MOST_OUTAGES)
        self._until = 0.0
        """The time of the newest message."""

    @property
    def current(self) -> Outage | None:
        """The outage that lasts now; None while the server answers."""
        return self._all[-1] if self._all and self._all[-1].ended is None else None

    @property
    def last(self) -> Outage | None:
        """The newest outage, present or past."""
        return self._all[-1] if self._all else None

    def add(self, event: Requests) -> None:
        self._until = event.t
        now = self.current
        if event.down and now is None:
            before = self._all[-1].ended if self._all else None
            begun = event.down_since or event.t
            self._all.append(Outage(max(begun, before or begun), None, event.down))
        elif now is not None:
            self._all[-1] = Outage(now.begun, None, event.down) if event.down else Outage(now.begun, event.t, now.why)

    def copied(self) -> Outages:
        other = Outages()
        other._all, other._until = self._all.copy(), self._until
        return other

    def overlap_s(self, begun: float, ended: float) -> float:
        """The seconds between `begun` and `ended` in which the server did not answer."""
        parts = (min(ended, one.ended if one.ended is not None else ended) - max(begun, one.begun) for one in self._all)
        return sum(part for part in parts if part > 0)

    def total_s(self, since: float) -> float:
        """The seconds of all outages after `since`, up to the newest message."""
        return self.overlap_s(since, self._until)

    def ratio(self, since: float) -> float:
        """The share of the time after `since`, up to the newest message, in which the server did not answer."""
        return self.total_s(since) / (self._until - since) if self._until > since else 0.0

    def count(self, since: float) -> int:
        """The outages that end after `since`, or last."""
        return sum(one.ended is None or one.ended > since for one in self._all)

    def answered(self, ticks: Sequence[Step]) -> list[Step]:
        """The ticks in which the server answered all the time."""
        return [tick for tick in ticks if self.overlap_s(tick.t - tick.wall_s, tick.t) <= 0] if self._all else list(ticks)
