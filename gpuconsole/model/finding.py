"""Conclusions of the rules: findings with evidence and suggestions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gpuconsole.agent.protocol import CodePlace as CodePlace
from gpuconsole.agent.protocol import Signal as Signal
from gpuconsole.model.knobs.catalogue import Knobs

State = Literal["fires", "clear", "cant_tell"]
Confidence = Literal["high", "medium", "low"]
Resource = Literal["time", "memory"]
STAKE: dict[Resource, str] = {"time": "recoverable", "memory": "of memory"}
"""The words after the share of a finding."""
ALTERNATIVE = "instead"
"""The word after the share of a finding that claims the same time as others: one of these cures
frees it, not both."""
HEALTHY = "_healthy"
"""The end of the id of a rule that calls a run healthy."""
CONFIDENCE_WEIGHT: dict[str, float] = {"high": 1.0, "medium": 0.8, "low": 0.5}


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signal and its threshold (None: the signal is shown for context only). `place`: the code
    that the signal is about; absent where there is none, and in files of earlier versions."""

    signal: str
    value: float
    unit: str
    threshold: float | None
    source: str
    place: CodePlace | None = None


class Interval(msgspec.Struct, frozen=True):
    low: float
    high: float

    @property
    def middle(self) -> float:
        return float((self.low * self.high) ** 0.5)


class Tried(msgspec.Struct, frozen=True):
    """What a trial of a suggestion measured in the same run: throughput with the change over
    throughput without it, with its 95 % interval, and the verdict of the trial with this id."""

    estimate: float
    low: float
    high: float
    verdict: str
    trial: str

    @property
    def gains(self) -> bool:
        return self.low > 1


class Suggestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of knobs. `predicted_speedup` is the throughput after the change over the
    throughput before; on a CPU, without the wait for a core, as a trial compares them. `code` is
    the code that a user would write. A change that was measured in this run has `tried` in place of
    a prediction (experiments.with_trials)."""

    changes: Knobs
    predicted_speedup: Interval | None
    why: str
    code: str
    tried: Tried | None = None


def stake_of(resource: Resource, alternative_to: Sequence[str]) -> str:
    """Return the words after the share of a finding with this `resource`, which claims the same
    time as the findings of the rules `alternative_to`."""
    return ALTERNATIVE if alternative_to else STAKE[resource]


class Finding(msgspec.Struct, frozen=True):
    """The conclusion of a rule about one run.

    `title` names the fault; in the state "clear" it names what is correct. `recoverable_ratio` is
    the share of step time that a perfect cure would free; in files of earlier versions, on a CPU,
    of step time without the wait for a core (run-queue delay). With `resource` "memory" it is the
    share of the memory limit, or of the used memory where that is more, that the best suggestion
    would free, which may cost time.
    `lost_trials`: the number of trials of the suggested changes on runs of the same job, if none of
    these trials gained (experiments.with_trials). `alternative_to`: the rules whose findings claim
    the same time, so that the shares do not add up (diagnosis.claims). Empty where the share
    counts. `note`: the finding informs and has nothing to recover (healthy, not steady). `missing`:
    signals that the rule needs for a conclusion or for a prediction. `level`: the leading signal
    over its threshold; diagnosis.engine.Hysteresis closes a finding by it.
    `place`: the program's code that takes most of the time; absent in files of earlier versions.
    Lists of findings are ranked by diagnosis.precedence.rank.
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
    lost_trials: int = 0
    alternative_to: tuple[str, ...] = ()
    place: CodePlace | None = None

    @property
    def stake(self) -> str:
        """Return the words after the share."""
        return stake_of(self.resource, self.alternative_to)

    @property
    def is_healthy(self) -> bool:
        """Whether the rule calls the run healthy: the run's time is well spent."""
        return self.rule.endswith(HEALTHY)

    @property
    def failed(self) -> bool:
        """Whether all suggestions were measured, and none of them gains. The cause may still be
        right, but it is not known how much time a cure would save."""
        tried = [
            suggestion.tried
            for suggestion in self.suggestions
            if suggestion.tried is not None and self.resource == "time"
        ]
        return (
            bool(tried)
            and len(tried) == len(self.suggestions)
            and not any(measured.gains for measured in tried)
        )

    @property
    def weight(self) -> float:
        """The weight for the ranking of findings. A measured gain takes the place of the
        estimate."""
        tried = [
            suggestion.tried
            for suggestion in self.suggestions
            if suggestion.tried is not None and self.resource == "time"
        ]
        if gains := [measured.estimate for measured in tried if measured.gains]:
            return 1 - 1 / max(gains)
        return float(self.recoverable_ratio * CONFIDENCE_WEIGHT[self.confidence])
