"""Does a certificate say what its own pairs of blocks say?"""

from __future__ import annotations

from gpuconsole.experiments.statistics import speedup, verdict
from gpuconsole.model.experiments.certificate import Certificate
from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes

ROUNDING = 1e-6


def mistakes(certificate: Certificate) -> list[str]:
    """What does not follow from what: intervals and verdicts from the pairs, the end from the start and what was kept."""
    found = [words for one in certificate.attempts for words in _of_trial(one.trial)]
    knobs: Knobs = dict(certificate.start)
    for one in certificate.attempts:
        if any(knobs.get(name) != value for name, value in one.knobs.items()):
            found.append(f"trial {one.trial.id} was made under other knobs than those kept before it")
        if one.trial.kept:
            knobs |= one.trial.changes
    if certificate.proof is not None and certificate.proof.kept:
        if certificate.end != certificate.start:
            found.append("the proof went back to the start, and the end is another")
    elif knobs != certificate.end:
        found.append("the knobs at the end are not those of the start with all that was kept")
    if certificate.proof is not None:
        found += _of_trial(certificate.proof)
        if {**knobs, **certificate.proof.changes} != certificate.start:
            found.append("the proof compares with something else than the start")
    return found


def _of_trial(trial: Trial) -> list[str]:
    if trial.state != "done" or trial.speedup is None:
        return [f"trial {trial.id} was kept without a proof"] if trial.kept else []
    name = f"trial {trial.id} ({describe_changes(trial.changes)})"
    again = speedup(list(trial.log_ratios), trial.between)
    pairs = (
        zip((again.estimate, again.low, again.high), (trial.speedup.estimate, trial.speedup.low, trial.speedup.high), strict=True)
        if again
        else ()
    )
    found = []
    if again is None or any(abs(one - other) > ROUNDING * max(1.0, abs(one)) for one, other in pairs):
        found.append(f"{name}: its interval does not follow from its {len(trial.log_ratios)} pairs")
    decided = verdict(list(trial.log_ratios), trial.null_log_ratios, trial.between) or "undecided"
    if decided != trial.verdict:
        found.append(f"{name}: its verdict is {trial.verdict}, and its pairs say {decided}")
    if trial.kept and not trial.worth_keeping:
        found.append(f"{name}: kept, and not proven")
    return found
