"""Suggestions of the rules, with the intervals that they predict."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.model.finding import Interval, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes

TRIAL_ERROR = 0.06
"""Relative difference between two trials of the same change on a shared machine: half of the spread on the tuning half of benchmarks/diagbench."""


def suggest(case: Case, changes: Knobs, predicted: Interval | None, why: str, code: str) -> Suggestion | None:
    """A suggestion, or None if the workload lacks one of the knobs or has all of the values already.

    A server that was not started here may have settings that it does not report: the suggestion then names no value of today.

    `predicted` is the speed-up that the rule's model gives. The trial that measures the speed-up also has an error, so the
    interval is widened by TRIAL_ERROR. A predicted gain never becomes a predicted loss that way.
    """
    missing = [name for name in changes if name not in case.knobs]
    if (missing and not case.elsewhere) or all(case.knobs.get(name) == value for name, value in changes.items()):
        return None
    if predicted is not None:
        low = max(min(1.0, predicted.low), predicted.low * (1 - TRIAL_ERROR))
        predicted = Interval(low, predicted.high * (1 + TRIAL_ERROR))
    return Suggestion(changes, predicted, f"{describe_changes(changes, case.knobs)}: {why}", code)


def speedup_interval(estimate: float, relative_error: float) -> Interval:
    """A predicted speed-up with `relative_error` applied to its gain; never below 1."""
    gain = max(0.0, estimate - 1)
    return Interval(1 + gain * (1 - relative_error), 1 + gain * (1 + relative_error))
