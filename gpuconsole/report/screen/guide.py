"""The hint line for a first session: what to do next, until the first trial has finished."""

from __future__ import annotations

from collections.abc import Mapping

from gpuconsole.model.experiments import Trial
from gpuconsole.report.run.diagnosis import NOTHING_FOUND
from gpuconsole.session import facts
from gpuconsole.session.api import View

STEPS = 4
CLOSING_S = 60.0
"""Seconds for which the hint after the first win is shown."""


def guide(view: View, keys: Mapping[str, str], *, choosing: bool = False) -> tuple[int, str]:
    """The present step (1 to STEPS) and what to do; (0, "") where no hint is useful. `keys`: what to press, by action.
    `choosing`: the list of scenarios is open.

    A recording takes no keys. After the first win the last hint says what to do with it: the user has seen the whole way.
    """
    run, trial = view.run, facts.running_trial(view)
    if view.recording or view.tuning is not None:
        return 0, ""
    if decided := [trial for trial in view.trials if trial.state == "done" and trial.verdict != "undecided"]:
        return (0, "") if choosing or trial is not None or len(decided) > 1 else _after(view, decided[0], keys)
    start = f"Press {keys['scenarios']}, choose an example, press {keys['start']}."
    another = "" if run is not None and run.is_job else f" Press {keys['scenarios']} for an example with a fault."
    if choosing:
        return 1, f"{keys['start']} starts the selected example. Choose one with a fault."
    if run is None:
        return 1, start
    if trial is not None:
        return 4, "Wait for the proof. Steps with and without the change alternate."
    if not facts.active(view):
        return (0, "") if run.is_job else (1, f"This run has ended. {start}")
    if facts.suggestions(view) and view.trials and view.trials[-1].state == "done":
        return 3, f"The trial was undecided: step times vary too much. Press {keys['try_selected']} to try again."
    if facts.healthy(run) is not None:
        return 2, f"This run is healthy.{another}"
    if facts.suggestions(view):
        return 3, f"Press {keys['try_selected']}: the console tries the change and keeps it if it helps."
    if facts.firing(run):
        return 2, f"This finding has no change to try here. Press {keys['details']} for the reasons."
    if run.findings and run.steady_from_s is not None and not view.probing:
        return 2, f"{NOTHING_FOUND}.{another}"
    return 2, "Wait for the finding. The console measures where the time goes."


def _after(view: View, trial: Trial, keys: Mapping[str, str]) -> tuple[int, str]:
    """What to do with the first win, for some time after it."""
    ended_s = view.trial_times.get(trial.id, (0.0, view.now))[1]
    if not trial.kept or trial not in facts.current_trials(view) or not facts.active(view) or view.now - ended_s > CLOSING_S:
        return 0, ""
    if view.run is not None and view.run.is_job:
        return STEPS, f"Proven and kept. {keys['quit']} leaves, and prints the patch for your code."
    return STEPS, f"Proven and kept. {keys['export']} writes a snapshot, {keys['revert']} reverts, {keys['quit']} saves and quits."


def narrate(view: View) -> tuple[int, str]:
    """The same steps for the recorded session of `--demo`: what happens at this moment. Nothing takes keys, so the text asks for none."""
    trial = facts.running_trial(view)
    if trial is not None:
        return 4, "The trial: steps with and without the change alternate."
    if finished := [trial for trial in view.trials if trial.state != "running"]:
        return 4, f"Proven and {'kept' if finished[-1].kept else 'reverted'}. To try it on this machine: q, then gpuconsole, s, Enter."
    if facts.suggestions(view):
        return 3, "The cause is found. In a live session Enter starts the trial; the recording goes on by itself."
    return (2, "The console measures where the time of each step goes.") if view.run is not None else (1, "A training run starts.")
