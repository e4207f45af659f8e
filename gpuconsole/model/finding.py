"""What a rule concluded, and what it suggests."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuconsole.model.knobs.catalogue import Knobs

State = Literal["fires", "clear", "cant_tell"]
Confidence = Literal["high", "medium", "low"]
Resource = Literal["time", "memory"]
STAKE: dict[Resource, str] = {"time": "recoverable", "memory": "of memory"}
"""What stands behind a finding's share, in words."""
CONFIDENCE_WEIGHT: dict[str, float] = {"high": 1.0, "medium": 0.8, "low": 0.5}


class Signal(msgspec.Struct, frozen=True):
    """One number that rules work on. `source` names the clock or counter and, where it matters, n."""

    value: float
    unit: str
    source: str


class Evidence(msgspec.Struct, frozen=True):
    """A signal's value beside the threshold it was held against (None: shown for context only)."""

    signal: str
    value: float
    unit: str
    threshold: float | None
    source: str


class Interval(msgspec.Struct, frozen=True):
    low: float
    high: float

    @property
    def middle(self) -> float:
        return float((self.low * self.high) ** 0.5)


class Suggestion(msgspec.Struct, frozen=True):
    """One knob change. `predicted_speedup` is throughput after over before; `code` is what a user would write."""

    changes: Knobs
    predicted_speedup: Interval | None
    why: str
    code: str


class Finding(msgspec.Struct, frozen=True):
    """A rule's conclusion about one run. `recoverable_ratio` is the share of step time that is at stake.

    With `resource` memory it is the share of the memory that may be used which the best suggestion would free; that may cost time.

    `note`: the finding informs and has nothing to recover (healthy, not steady). `missing`: the signals without which
    the rule can't tell, or cannot predict. `level`: the leading signal over its threshold; the engine's hysteresis works on it.
    """

    rule: str
    state: State
    title: str
    recoverable_ratio: float = 0.0
    confidence: Confidence = "medium"
    summary: str = ""
    evidence: tuple[Evidence, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    note: bool = False
    missing: tuple[str, ...] = ()
    level: float = 0.0
    resource: Resource = "time"

    @property
    def weight(self) -> float:
        """What findings are ranked by."""
        return float(self.recoverable_ratio * CONFIDENCE_WEIGHT[self.confidence])
