"""Chooses the next trial of a tuning session: the change with the largest expected gain per second of its trial."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gpuconsole.diagnosis.suggest import TRIAL_ERROR
from gpuconsole.experiments.blocks import plans
from gpuconsole.experiments.statistics import LEAST_BETWEEN_PROCESSES, MIN_PAIRS
from gpuconsole.model.experiments.certificate import LeftAlone
from gpuconsole.model.finding import CONFIDENCE_WEIGHT, Finding, Interval, Suggestion
from gpuconsole.model.job.facts import CHANGES_NUMERICS, EFFECTS
from gpuconsole.model.knobs.catalogue import CATALOGUE, GROUPS, Knobs, show
from gpuconsole.model.run import Run

WORTH = 0.05
"""A change with a smaller predicted gain is not worth a trial: 5 % is the smallest gain that the diagnosis benchmark counts as a cause."""
LIVE_S, LOADER_S, LIVE_SERVER_S, RESTART_S, SERVER_S = 8.0, 20.0, 20.0, 40.0, 60.0
"""Usual duration of a trial in seconds: in the running process; of a DataLoader; on a running model server (MIN_PAIRS pairs of blocks of
MIN_SERVING_BLOCK_S, and settling time); with a second worker; with a second model server."""
UNPREDICTED = 0.5
"""Expected gain of a change without a prediction, as a share of the time at stake."""


class Allowed(NamedTuple):
    """What the user allows a session to try: changes of what the model learns per step; changes that alter the numbers of the user's own job;
    changes of the knobs in `only` (empty: of all knobs)."""

    training: bool = False
    numerics: bool = False
    only: Collection[str] = ()


ALLOWED = Allowed()
"""What every session may try."""


class Candidate(msgspec.Struct, frozen=True):
    """A suggestion that may be tried. `gain`: expected gain of throughput (0.2: one fifth more); `worth`: gain times probability, per second
    of trial."""

    rule: str
    suggestion: Suggestion
    gain: float
    worth: float

    @property
    def changes(self) -> Knobs:
        return self.suggestion.changes


def candidates(run: Run, tried: Sequence[tuple[Knobs, Knobs]], allowed: Allowed = ALLOWED) -> list[Candidate]:
    """The suggestions of the run's findings, each once, the best first. `tried`: pairs of the knobs at that time and the changes.

    Changes that may not be tried (see `barrier`) are excluded, and changes that promise too little (see `promising`).
    """
    return [one for one in promising(run, tried) if not barrier(run, one.changes, allowed)]


def left_alone(run: Run, tried: Sequence[tuple[Knobs, Knobs]], allowed: Allowed = ALLOWED) -> list[LeftAlone]:
    """The promising changes that may not be tried, the best first, each with the reason."""
    found = [(one, barrier(run, one.changes, allowed)) for one in promising(run, tried)]
    return [LeftAlone(one.rule, one.changes, why, one.suggestion.predicted_speedup) for one, why in found if why]


def barrier(run: Run, changes: Knobs, allowed: Allowed = ALLOWED) -> str:
    """Why a session may not try `changes`, with the option that allows it; empty where it may. The users of a model server decide its load."""
    if reason := run.why_not(changes):
        return reason
    load = {knob.name for knob in GROUPS["load"]}
    if name := next((name for name in changes if name in load), ""):
        return f"the users of the server decide its load; --set {name}={show(changes[name])} starts with it"
    if not allowed.training and any(CATALOGUE[name].changes_training for name in changes):
        return "it changes what the model learns per step; --allow-training-changes allows it"
    if not allowed.numerics and run.effect(changes) == CHANGES_NUMERICS:
        return f"it changes numerics ({EFFECTS[CHANGES_NUMERICS]}); --allow-numerics allows it (on the screen: N)"
    if missing := [name for name in changes if allowed.only and name not in allowed.only]:
        return f"--only leaves it out; --only {','.join([*allowed.only, *missing])} allows it"
    return ""


def promising(run: Run, tried: Sequence[tuple[Knobs, Knobs]]) -> list[Candidate]:
    """The suggestions of the run's findings, each once, the best first. Left out: changes already tried under the same knobs, and
    changes with a predicted gain below WORTH or below the smallest gain that their trial can prove."""
    found: dict[str, Candidate] = {}
    for finding in run.findings:
        if finding.state != "fires" or finding.resource != "time":
            continue
        for suggestion in finding.suggestions:
            if not suggestion.changes.keys() <= run.knobs.keys():
                continue  # not known in the user's own program
            if any(changes == suggestion.changes and before == run.knobs for before, changes in tried):
                continue
            gain, most = promise(finding, suggestion.predicted_speedup)
            if most < (WORTH if run.applies_live(suggestion.changes) else LEAST_BETWEEN_PROCESSES):
                continue
            worth = gain * CONFIDENCE_WEIGHT[finding.confidence] / trial_s(suggestion.changes, run)
            key = repr(sorted(suggestion.changes.items()))
            if key not in found or found[key].worth < worth:
                found[key] = Candidate(finding.rule, suggestion, gain, worth)
    return sorted(found.values(), key=lambda one: -one.worth)


def promise(finding: Finding, predicted: Interval | None) -> tuple[float, float]:
    """Expected and largest gain of throughput that the model predicts, without the margin for the error of a trial."""
    if predicted is not None:
        model = Interval(predicted.low, max(predicted.low, predicted.high / (1 + TRIAL_ERROR)))
        return model.middle - 1, model.high - 1
    at_stake = min(0.95, finding.recoverable_ratio)
    most = at_stake / (1 - at_stake)
    return UNPREDICTED * most, most


def trial_s(changes: Knobs, run: Run) -> float:
    """Expected duration of a trial of `changes` to `run`: the usual duration, or more if blocks need many steps or slow steps."""
    step_s = run.signals["step_s"].value if "step_s" in run.signals else 0.0
    sides = plans(run.knobs, changes, run.summary.phases_ratio or None)
    return max(usual_s(changes, run), MIN_PAIRS * sum(plan.least_s(step_s) for plan in sides.values()))


def usual_s(changes: Knobs, run: Run) -> float:
    """Usual duration of a trial of this kind."""
    knobs, live = [CATALOGUE[name] for name in changes], run.applies_live(changes)
    if any(knob.serving for knob in knobs):
        return LIVE_SERVER_S if live else SERVER_S
    if not live:
        return RESTART_S
    return LOADER_S if any(knob.loader for knob in knobs) else LIVE_S


def tunable_knobs(knobs: Iterable[str], allowed: Allowed = ALLOWED) -> set[str]:
    """The names in `knobs` that a tuning session may change."""
    load = {knob.name for knob in GROUPS["load"]}
    return {
        name
        for name in knobs
        if name not in load and (allowed.training or not CATALOGUE[name].changes_training) and (not allowed.only or name in allowed.only)
    }
