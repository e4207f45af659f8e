"""Checks a certificate: whether its intervals and verdicts follow from its pairs of blocks."""

from __future__ import annotations

from gpuconsole.experiments.statistics import speedup, verdict
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes

ROUNDING = 1e-6


def mistakes(certificate: Certificate) -> list[str]:
    """The contradictions in the certificate: between intervals or verdicts and the pairs; between the start, the kept changes and the end."""
    found = [words for one in certificate.attempts for words in _of_trial(one.trial)]
    knobs: Knobs = dict(certificate.start)
    for one in certificate.attempts:
        if any(knobs.get(name) != value for name, value in one.knobs.items()):
            found.append(f"trial {one.trial.id} did not start from the settings that were kept before it")
        if one.trial.kept:
            knobs |= one.trial.changes
    if certificate.proof is not None and certificate.proof.kept:
        if certificate.end != certificate.start:
            found.append("the final trial went back to the start, but the end has other settings")
    elif knobs != certificate.end:
        found.append("the settings at the end are not the start plus the kept changes")
    if certificate.proof is not None:
        found += _of_trial(certificate.proof)
        if {**knobs, **certificate.proof.changes} != certificate.start:
            found.append("the final trial does not compare with the start")
    return found


def _of_trial(trial: Trial) -> list[str]:
    if trial.state != "done" or trial.speedup is None:
        return [f"trial {trial.id} was kept without a measured gain"] if trial.kept else []
    name = f"trial {trial.id} ({describe_changes(trial.changes)})"
    again = speedup(list(trial.log_ratios), trial.between)
    pairs = (
        zip((again.estimate, again.low, again.high), (trial.speedup.estimate, trial.speedup.low, trial.speedup.high), strict=True)
        if again
        else ()
    )
    found = []
    if again is None or any(abs(one - other) > ROUNDING * max(1.0, abs(one)) for one, other in pairs):
        found.append(f"{name}: the interval does not follow from the {len(trial.log_ratios)} pairs")
    decided = verdict(list(trial.log_ratios), trial.null_log_ratios, trial.between) or "undecided"
    if decided != trial.verdict:
        found.append(f"{name}: the verdict is {trial.verdict}, but the pairs give {decided}")
    if trial.kept and not trial.worth_keeping:
        found.append(f"{name}: kept, but not proven")
    return found
