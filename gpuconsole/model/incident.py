"""What happened around a latency peak of a model server."""

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


class IncidentChange(msgspec.Struct, frozen=True):
    """What changed around a peak. `kind`: a cause, or what follows from any cause (a queue). `t`:
    when it began, in Unix seconds. `evidence`: the figures."""

    name: str
    words: str
    kind: Literal["cause", "follows"]
    t: float
    evidence: str


class Incident(msgspec.Struct, omit_defaults=True):
    """The answer of `gpuconsole explain`. `asked`: the time that was asked about, in Unix seconds;
    None: the highest peak. `peak` None: there is none.

    `unchanged`: what the recording has and what did not change. `cannot_tell`: what it does not
    have. `begun`, `ended`: the recorded time.
    """

    begun: float
    ended: float
    asked: float | None = None
    peak: Peak | None = None
    changes: list[IncidentChange] = []
    unchanged: list[str] = []
    cannot_tell: list[str] = []
    notes: list[str] = []
