"""The report of a whole session in the terminal: every run and every trial."""

from __future__ import annotations

from gpuconsole.model.experiments import Trial
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Paint, plain
from gpuconsole.report.experiments import trial_report
from gpuconsole.report.parts import BLANK, Report, printed
from gpuconsole.report.run.breakdown import attainable_report, places_report
from gpuconsole.report.run.diagnosis import firing_report
from gpuconsole.report.run.figures import validity_report
from gpuconsole.report.run.memory import owners_report
from gpuconsole.report.run.models import models_report
from gpuconsole.report.run.profile import profile_report
from gpuconsole.report.run.runs import cause_report, figures, run_head, runs_report


def session_text(snapshot: Snapshot, paint: Paint = plain) -> str:
    """The names of the GPUs in use; all runs and trials, a block for each; then, with several runs,
    the table of runs."""
    blocks = gpu_names(snapshot)
    blocks += [run_text(run, snapshot.environment, paint) for run in snapshot.runs]
    blocks += [trial_text(trial, snapshot, paint) for trial in snapshot.trials]
    if len(snapshot.runs) > 1:
        blocks.append(printed(runs_report(snapshot.runs, snapshot.trials), paint=paint))
    return "\n\n".join(blocks)


def gpu_names(snapshot: Snapshot) -> list[str]:
    """One block with a line for each GPU that a run used; none on a CPU. A simulated GPU says so in
    its name."""
    used = {run.device for run in snapshot.runs}
    lines = [
        f"{device.id}  {visible(device.name)}"
        for device in snapshot.environment.devices
        if device.is_gpu and device.id in used
    ]
    return ["\n".join(lines)] if lines else []


def run_text(run: Run, environment: Environment | None = None, paint: Paint = plain) -> str:
    """Return a run in text: the answer first (what went wrong, the findings, or why there are
    none), then its figures, attainable rate, the models that have a measurement and the profile.
    `environment`: the machine of the run."""
    answer = [*cause_report(run), *validity_report(run), *firing_report(run), BLANK]
    figures_of_run = run_figures(run, environment, whole=False)
    return "\n".join(
        [
            printed([run_head(run)], paint=paint),
            printed([*answer, *figures_of_run], 2, paint),
        ]
    )


def run_report(run: Run, environment: Environment | None = None, whole: bool = True) -> Report:
    """Return what went wrong in a run, whether its numbers are valid, then `run_figures`."""
    return [*cause_report(run), *validity_report(run), *run_figures(run, environment, whole)]


def run_figures(run: Run, environment: Environment | None = None, whole: bool = True) -> Report:
    """Return the figures of a run, its attainable rate, models and profile. Not `whole`: without
    models that lack a figure."""
    inside = [*figures(run), *owners_report(run)]
    larger = [
        part
        for part in (
            places_report(run),
            attainable_report(run),
            models_report(run, whole),
            profile_report(run, environment),
        )
        if part
    ]
    for part in larger:
        inside += [BLANK, *part]
    return inside


def trial_text(trial: Trial, snapshot: Snapshot, paint: Paint = plain) -> str:
    """A trial with all its figures."""
    before = next((run.knobs for run in snapshot.runs if run.id == trial.baseline_run), None)
    return printed(trial_report(trial, before), paint=paint)
