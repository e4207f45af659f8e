"""What a rule is given, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpuconsole.model.finding import Confidence, Evidence, Finding, Interval, Resource, Signal, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs, Value, describe_changes


class Missing(LookupError):
    """A rule asked for a signal that was not measured: it can't tell."""

    def __init__(self, signal: str) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass(frozen=True)
class Case:
    """One run as the rules see it: its knobs, and signals by name. `serves`: a model server under load, not training."""

    knobs: Knobs
    signals: dict[str, Signal]
    serves: bool = False

    def value(self, signal: str) -> float:
        """The signal's value; raises Missing."""
        if signal not in self.signals:
            raise Missing(signal)
        return self.signals[signal].value

    def get(self, signal: str, default: float) -> float:
        """For signals that only refine: the value, or `default` where it was not measured."""
        return self.signals[signal].value if signal in self.signals else default

    def evidence(self, signal: str, threshold: float | None = None) -> Evidence:
        found = self.signals.get(signal)
        if found is None:
            raise Missing(signal)
        return Evidence(signal, found.value, found.unit, threshold, found.source)

    def if_known(self, *signals: str, threshold: float | None = None) -> tuple[Evidence, ...]:
        """Evidence of those that were measured: what refines a finding, and which it does without."""
        return tuple(self.evidence(name, threshold) for name in signals if name in self.signals)


@dataclass(frozen=True)
class Threshold:
    """A figure that a rule decides by, and where it comes from."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True)
class Rule:
    """One rule, complete: what it needs, what it decides by, what it means, and the check itself."""

    id: str
    title: str
    signals: tuple[str, ...]
    thresholds: tuple[Threshold, ...]
    text: str
    check: Callable[[Case], Finding] = field(repr=False)
    knobs: tuple[str, ...] = ()
    """Those that its suggestions turn."""
    resource: Resource = "time"
    """What they would save: its findings say the same."""
    serving: bool = False
    """Whether it is about model servers; the others are about training."""
    shared: bool = False
    """About the hardware, so about both."""

    def threshold(self, name: str) -> float:
        return next(threshold.value for threshold in self.thresholds if threshold.name == name)


def clear(rule: str, title: str, level: float, evidence: tuple[Evidence, ...] = (), summary: str = "") -> Finding:
    """The rule looked and found nothing."""
    return Finding(rule=rule, state="clear", title=title, evidence=evidence, level=level, summary=summary)


def fires(
    rule: str,
    title: str,
    summary: str,
    *,
    recoverable: float,
    confidence: Confidence,
    evidence: tuple[Evidence, ...],
    suggestions: tuple[Suggestion, ...] = (),
    level: float = 1.0,
    note: bool = False,
    resource: Resource = "time",
    wants: tuple[str, ...] = (),
) -> Finding:
    """The rule found its cause; `recoverable` is the share of step time (or of the memory limit) at stake.

    `wants`: signals of a probe with which it could predict what its suggestion gains.
    """
    return Finding(rule, "fires", title, max(0.0, recoverable), confidence, summary, evidence, suggestions, note, wants, level, resource)


TRIAL_ERROR = 0.06
"""What two trials of one and the same change differ by on a shared machine: half of the spread on the tuning half of benchmarks/diagbench."""


def suggest(case: Case, changes: Knobs, predicted: Interval | None, why: str, code: str) -> Suggestion | None:
    """A suggestion, if the workload has those knobs and they would change; else None.

    `predicted` is what the model says; the measurement that it will be held against adds an error of its own.
    """
    if any(name not in case.knobs for name in changes) or all(case.knobs[name] == value for name, value in changes.items()):
        return None
    if predicted is not None:
        low = max(min(1.0, predicted.low), predicted.low * (1 - TRIAL_ERROR))  # what is said to gain is not said to lose
        predicted = Interval(low, predicted.high * (1 + TRIAL_ERROR))
    return Suggestion(changes, predicted, f"{describe_changes(changes, case.knobs)}: {why}", code)


def some(*suggestions: Suggestion | None) -> tuple[Suggestion, ...]:
    return tuple(suggestion for suggestion in suggestions if suggestion is not None)


def speedup_interval(estimate: float, relative_error: float) -> Interval:
    """A predicted speed-up with its error applied to the gain, never below 1."""
    gain = max(0.0, estimate - 1)
    return Interval(1 + gain * (1 - relative_error), 1 + gain * (1 + relative_error))


def knob_int(value: Value) -> int:
    return int(value)
