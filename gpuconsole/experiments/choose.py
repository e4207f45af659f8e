"""What to try next: the change whose predicted gain is worth most of the time that its trial takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from gpuconsole.diagnosis.case import TRIAL_ERROR
from gpuconsole.experiments.blocks import plans
from gpuconsole.experiments.statistics import LEAST_BETWEEN_PROCESSES, MIN_PAIRS
from gpuconsole.model.finding import CONFIDENCE_WEIGHT, Finding, Interval, Suggestion
from gpuconsole.model.knobs.catalogue import CATALOGUE, GROUPS, Knobs
from gpuconsole.model.run import Run

WORTH = 0.05
"""A change that promises less is not worth a trial: the least gain that the diagnosis benchmark counts as a cause."""
HOT_S, LOADER_S, COLD_S, SERVER_S = 8.0, 20.0, 40.0, 60.0
"""What a trial takes, roughly: in place, through a DataLoader, with a second worker, with a second model server."""
UNPREDICTED = 0.5
"""Of the time at stake, what a change without a prediction is expected to win back."""


class Candidate(msgspec.Struct, frozen=True):
    """A suggestion with what it promises. `gain`: of throughput, 0.2 is a fifth more; `worth`: gain times probability over trial time."""

    rule: str
    suggestion: Suggestion
    gain: float
    worth: float

    @property
    def changes(self) -> Knobs:
        return self.suggestion.changes


def candidates(run: Run, tried: Sequence[tuple[Knobs, Knobs]], allow_training_changes: bool, only: Collection[str] = ()) -> list[Candidate]:
    """What the run's findings suggest, best first, each once; without what has been tried under the same knobs.

    `tried` are pairs of the knobs then and the changes. Left out too: changes of the load on a model server, which is the users' and not
    the server's; where not allowed, changes of what is learnt per step; whatever promises less than WORTH, or less than a trial could
    prove; and where there are knobs that `only` may be turned, changes of others.
    """
    found: dict[str, Candidate] = {}
    for finding in run.findings:
        if finding.state != "fires" or finding.resource != "time":
            continue
        for suggestion in finding.suggestions:
            if any(changes == suggestion.changes and before == run.knobs for before, changes in tried):
                continue
            if suggestion.changes.keys() - tunable_knobs(suggestion.changes, allow_training_changes, only):
                continue
            gain, most = promise(finding, suggestion.predicted_speedup)
            if most < (WORTH if in_place(suggestion.changes) else LEAST_BETWEEN_PROCESSES):
                continue
            worth = gain * CONFIDENCE_WEIGHT[finding.confidence] / trial_s(suggestion.changes, run)
            key = repr(sorted(suggestion.changes.items()))
            if key not in found or found[key].worth < worth:
                found[key] = Candidate(finding.rule, suggestion, gain, worth)
    return sorted(found.values(), key=lambda one: -one.worth)


def promise(finding: Finding, predicted: Interval | None) -> tuple[float, float]:
    """Expected and greatest gain of throughput, as the model has it: without the room that is left for the error of a trial."""
    if predicted is not None:
        model = Interval(predicted.low, max(predicted.low, predicted.high / (1 + TRIAL_ERROR)))
        return model.middle - 1, model.high - 1
    at_stake = min(0.95, finding.recoverable_ratio)
    most = at_stake / (1 - at_stake)
    return UNPREDICTED * most, most


def in_place(changes: Knobs) -> bool:
    """Whether one process can have both sides of a trial."""
    return all(CATALOGUE[name].apply == "hot" and not CATALOGUE[name].serving for name in changes)


def trial_s(changes: Knobs, run: Run) -> float:
    """How long a trial of `changes` to `run` takes: as most of its kind, or longer where its blocks must hold many steps, or slow ones."""
    step_s = run.signals["step_s"].value if "step_s" in run.signals else 0.0
    sides = plans(run.knobs, changes, run.summary.phases_ratio or None)
    return max(usual_s(changes), MIN_PAIRS * sum(plan.least_s(step_s) for plan in sides.values()))


def usual_s(changes: Knobs) -> float:
    """How long most trials of the kind take."""
    of_knobs = [CATALOGUE[name] for name in changes]
    if any(knob.serving for knob in of_knobs):
        return SERVER_S
    cold = any(knob.apply == "cold" for knob in of_knobs)
    return COLD_S if cold else LOADER_S if any(knob.loader for knob in of_knobs) else HOT_S


def tunable_knobs(knobs: Iterable[str], allow_training_changes: bool, only: Collection[str] = ()) -> set[str]:
    """Those of `knobs` that may be turned."""
    load = {knob.name for knob in GROUPS["load"]}
    return {
        name
        for name in knobs
        if name not in load and (allow_training_changes or not CATALOGUE[name].changes_training) and (not only or name in only)
    }
