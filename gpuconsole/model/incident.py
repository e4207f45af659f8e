"""What happened at a time, or around a latency peak, of a model server."""

from __future__ import annotations

from typing import Literal

import msgspec


class Peak(msgspec.Struct, frozen=True):
    """A time in which a latency was far above what it was before. Times in Unix seconds; `before`
    and `value` in seconds: the median of the time before, and the highest mean of a window."""

    latency: str
    begun: float
    ended: float
    before: float
    value: float

    @property
    def ratio(self) -> float:
        return self.value / self.before

    @property
    def rise_s(self) -> float:
        return self.value - self.before


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that went wrong from `begun` to `ended` (Unix seconds). `words` say what; a peak is
    in `peak`."""

    kind: Literal["outage", "standstill", "restart", "peak"]
    begun: float
    ended: float
    words: str = ""
    peak: Peak | None = None


class Episode(msgspec.Struct, frozen=True):
    """What went wrong at one time: the parts belong together, because each begins shortly after
    another one has begun. `lost_s`: the seconds that a user lost by it: the rise of a latency, or
    the length of an outage or a standstill."""

    parts: tuple[Part, ...]
    lost_s: float

    @property
    def begun(self) -> float:
        return min(part.begun for part in self.parts)

    @property
    def ended(self) -> float:
        return max(part.ended for part in self.parts)

    @property
    def peaks(self) -> list[Peak]:
        return [part.peak for part in self.parts if part.peak is not None]


class IncidentChange(msgspec.Struct, frozen=True):
    """What changed around a peak. `kind`: a cause, or what follows from any cause (a queue). `t`:
    when it began, in Unix seconds. `evidence`: the figures."""

    name: str
    words: str
    kind: Literal["cause", "follows"]
    t: float
    evidence: str


class Incident(msgspec.Struct, omit_defaults=True):
    """The answer of `gpuconsole explain`. `asked` to `asked_until`: the time that was asked about,
    in Unix seconds; None: the episode in which users lost most.

    `found`: what happened at the asked time: the kind of a part, "no readings" or "nothing".
    `episode`: what is explained, see `changes`; None: there is nothing near. `peak`: the peak of
    the episode in which users lost most. `others`: without an asked time the other episodes of the
    recording; with it the nearest peak, where `episode` has none.

    `unchanged`: what the recording has and what did not change. `cannot_tell`: what it does not
    have. `begun`, `ended`: the recorded time.
    """

    begun: float
    ended: float
    asked: float | None = None
    asked_until: float | None = None
    found: str = ""
    episode: Episode | None = None
    peak: Peak | None = None
    others: list[Episode] = []
    changes: list[IncidentChange] = []
    unchanged: list[str] = []
    cannot_tell: list[str] = []
    notes: list[str] = []
