"""The last lines about a job that ended before a trial could be decided: how long it would have had
to train, and the change to try."""

from __future__ import annotations

from gpuconsole.experiments.statistics import MIN_PAIRS, plans
from gpuconsole.experiments.trial import JOB_ENDED
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.model.text import clean
from gpuconsole.model.units import about
from gpuconsole.report.patch import in_own_code
from gpuconsole.session.facts import can_try, firing

DIAGNOSIS_S = 2.0
"""Seconds from the first steady step to the first complete diagnosis; a trial begins after it."""


def job_hints(snapshot: Snapshot, tries: Knobs | None = None) -> list[str]:
    """One or two lines; none where a trial was decided, where the job trained long enough for one,
    and where there is nothing to try.

    `tries`: the change that the user asked for; without it the first suggestion counts.
    """
    broken_off = next(
        (trial for trial in reversed(snapshot.trials) if trial.error == JOB_ENDED), None
    )
    runs = [
        run
        for run in snapshot.runs
        if run.is_job and (broken_off is None or run.id == broken_off.baseline_run)
    ]
    if not runs or (snapshot.trials and broken_off is None):
        return []
    run = runs[-1]
    changes = broken_off.changes if broken_off is not None else tries or first_suggestion(run)
    if not changes or run.summary.step_time_s is None or run.why_not(changes):
        return []
    needed_s = _begin_s(run, broken_off) + least_s(run, changes, broken_off)
    if broken_off is None and run.duration_s >= needed_s:
        return []
    lines = [
        (
            f"the job ended after {about(run.duration_s)} of training, before a trial of"
            f" {describe_changes(changes, run.knobs)} could be decided: that takes"
            f" {about(needed_s)} or more"
        )
    ]
    if run.job is not None and (code := in_own_code(changes, run.job, run.knobs)):
        lines.append(f"to try it in your own code: {'; '.join(code).replace('; #', '  #')}")
    return [clean(line) for line in lines]  # names of files may hold anything


def first_suggestion(run: Run) -> Knobs:
    """The changes of the first suggestion that can be tried on this run; empty without one."""
    suggestions = (suggestion for finding in firing(run) for suggestion in finding.suggestions)
    return next((suggestion.changes for suggestion in suggestions if can_try(run, suggestion)), {})


def least_s(run: Run, changes: Knobs, trial: Trial | None = None) -> float:
    """Seconds of the shortest trial that can be decided: blocks as long as those of `trial`, where
    it has measured some."""
    assert run.summary.step_time_s is not None
    step_s = run.summary.step_time_s.mean
    of_side = plans(run.knobs, changes, run.summary.phases_ratio or None, of_job=True).values()
    planned_s = MIN_PAIRS * sum(plan.least_s(step_s) + plan.settling * step_s for plan in of_side)
    return max(
        planned_s,
        trial.elapsed_s / trial.blocks * 2 * MIN_PAIRS
        if trial is not None and trial.blocks
        else 0.0,
    )


def _begin_s(run: Run, trial: Trial | None) -> float:
    """Seconds of training until the trial began, or could begin at the earliest. A run that was not
    steady at its end needs more than it had."""
    if trial is not None and trial.begun_s is not None and run.begun_s is not None:
        return max(0.0, trial.begun_s - run.begun_s)
    return (run.duration_s if run.steady_from_s is None else run.steady_from_s) + DIAGNOSIS_S
