"""Checks a certificate: whether its intervals and verdicts follow from its pairs of blocks."""

from __future__ import annotations

from gpuconsole.experiments.statistics import speedup, verdict
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes

ROUNDING = 1e-6


def mistakes(certificate: Certificate) -> list[str]:
    """The contradictions in the certificate: between intervals or verdicts and the pairs; between
    the start, the kept changes and the end."""
    differences = [
        difference for attempt in certificate.attempts for difference in _of_trial(attempt.trial)
    ]
    knobs: Knobs = dict(certificate.start)
    gone: Knobs = {}
    """The changes that were kept at first, and taken back."""
    for attempt in certificate.attempts:
        if any(
            value not in (knobs.get(name), gone.get(name, knobs.get(name)))
            for name, value in attempt.knobs.items()
        ):
            differences.append(
                f"trial {attempt.trial.id} did not start from the settings that were kept before it"
            )
        if attempt.trial.kept:
            knobs |= attempt.trial.changes
        elif attempt.trial.taken_back:
            gone |= attempt.trial.changes
    if certificate.proof is not None and certificate.proof.kept:
        if certificate.end != certificate.start:
            differences.append(
                "the final trial went back to the start, but the end has other settings"
            )
    elif knobs != certificate.end:
        differences.append("the settings at the end are not the start plus the kept changes")
    if certificate.proof is not None:
        differences += _of_trial(certificate.proof)
        if {**knobs, **certificate.proof.changes} != certificate.start:
            differences.append("the final trial does not compare with the start")
    return differences


def _of_trial(trial: Trial) -> list[str]:
    if trial.state != "done" or trial.speedup is None:
        return [f"trial {trial.id} was kept without a measured speedup"] if trial.kept else []
    name = f"trial {trial.id} ({describe_changes(trial.changes)})"
    again = speedup(list(trial.log_ratios), trial.between, trial.step_deviation)
    pairs = (
        zip(
            (again.estimate, again.low, again.high),
            (trial.speedup.estimate, trial.speedup.low, trial.speedup.high),
            strict=True,
        )
        if again
        else ()
    )
    differences = []
    if again is None or any(
        abs(value - other) > ROUNDING * max(1.0, abs(value)) for value, other in pairs
    ):
        differences.append(
            f"{name}: the interval does not follow from the {len(trial.log_ratios)} pairs"
        )
    decided = (
        verdict(list(trial.log_ratios), trial.null_log_ratios, trial.between, trial.step_deviation)
        or "undecided"
    )
    if decided != trial.verdict and not trial.reason:
        differences.append(f"{name}: the verdict is {trial.verdict}, but the pairs give {decided}")
    if trial.kept and not trial.worth_keeping and not trial.reason:
        differences.append(f"{name}: kept, but not proven")
    return differences
