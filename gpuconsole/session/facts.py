"""Facts that several reports read from a `View`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from gpuconsole.model import units
from gpuconsole.model.experiments import Trial
from gpuconsole.model.finding import Finding, Suggestion
from gpuconsole.model.job import AGENT
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import series_key
from gpuconsole.model.run import Run
from gpuconsole.session.api import View

HOST = "cpu"
SERVER = "server"
NO_SAMPLE = "no sample yet"
VENDORS = ("NVIDIA ", "AMD ", "Intel(R) ")


def latest(view: View, metric: str, device: str | None = None) -> float | None:
    """The newest value of `metric`, by default of the device of the run."""
    return view.latest.get(series_key(metric, device or device_of(view, metric)))


def device_of(view: View, metric: str) -> str:
    """The device of a metric: the host for host metrics, the server for server metrics, otherwise
    the device of the run."""
    return (
        HOST
        if metric.startswith("host.")
        else SERVER
        if metric.startswith("server.")
        else view.device
    )


def silent_s(view: View, device: str) -> float:
    """Seconds since the last message about a device if its values are not fresh; otherwise 0."""
    return view.silent.get(device, 0.0)


def reason(view: View, metric: str) -> str:
    """The reason why `metric` has no value."""
    device = device_of(view, metric)
    if not metric.startswith("workload.") and (silent := silent_s(view, device)):
        return f"silent for {silent:.0f} s"
    why = view.unavailable.get(series_key(metric, device)) or (
        view.run.unavailable.get(metric) if view.run else None
    )
    if why:
        return why
    if device in view.lost:
        return view.lost[device]
    if metric.startswith("workload.") and view.run is not None and view.run.state == "failed":
        return "the run failed"
    if (
        metric.startswith("workload.")
        and view.run is not None
        and view.run.is_job
        and view.run.summary.steps
    ):
        return "not counted in this job"
    if metric.startswith("workload."):
        return (
            view.stage
            if active(view) and view.stage
            else "no steps yet"
            if active(view)
            else "nothing is running"
        )
    return NO_SAMPLE


def active(view: View) -> bool:
    """Whether a run is starting or running."""
    return view.run is not None and view.run.state in ("starting", "running")


def processes(run: Run | None) -> int:
    """The number of processes of the run: the processes that have joined, or the number in the
    knobs during the start."""
    nproc = run.knobs.get("nproc", 1) if run else 1
    return max(len(run.ranks) if run else 1, nproc if isinstance(nproc, int) else 1)


def device(view: View) -> Device:
    """The device that the run uses, or the next run would use."""
    return next(
        (device for device in view.devices if device.id == view.device),
        Device(view.device or HOST, "unknown device"),
    )


def server_is_elsewhere(view: View) -> bool:
    """Whether the run watches a server on another machine: nothing of this machine concerns it."""
    run = view.run
    return run is not None and run.watched and run.server is not None and run.server.here is False


def short_name(name: str) -> str:
    for vendor in VENDORS:
        name = name.removeprefix(vendor)
    return name


def agent_is_off(view: View) -> bool:
    """Whether no agent watches the user's own job, which runs."""
    run = view.run
    return run is not None and run.is_job and active(view) and AGENT in run.unavailable


def throughput_metric(view: View) -> tuple[str, str]:
    """The metric of the throughput, and its unit."""
    tokens = view.latest.get(series_key("workload.tokens_per_s", view.device)) is not None
    if not tokens and view.run is not None:
        tokens = view.run.summary.tokens_per_s is not None
    return (
        ("workload.tokens_per_s", "tokens/s") if tokens else ("workload.samples_per_s", "samples/s")
    )


def firing(run: Run | None) -> list[Finding]:
    """Findings that fire, in the order in which the diagnosis ranked them."""
    return [finding for finding in run.findings if finding.state == "fires"] if run else []


def healthy(run: Run | None) -> Finding | None:
    """The finding that calls the run healthy, if all findings that fire are notes."""
    firing_findings = firing(run)
    healthy_findings = [finding for finding in firing_findings if finding.is_healthy]
    return (
        healthy_findings[0]
        if healthy_findings and all(finding.note for finding in firing_findings)
        else None
    )


def continues(run: Run, before: Run) -> bool:
    """Whether `run` continues `before` with changed knobs, or was started separately (False)."""
    return bool(run.changes) and run.scenario == before.scenario


def chain(view: View) -> list[Run]:
    """The current run and the runs that it continues, the oldest first."""
    runs: list[Run] = []
    for run in reversed(view.runs):
        if runs and not continues(runs[-1], run):
            break
        runs.append(run)
    return runs[::-1]


def begun_s(view: View) -> float:
    """When the current work began, in seconds of the session: the start of the first run that the
    current run continues."""
    begun = dict(zip((run.id for run in view.runs), view.run_times, strict=False))
    first = chain(view)[:1]
    return begun.get(first[0].id, 0.0) if first else 0.0


def clock_s(view: View) -> float:
    """Return the seconds on the clock of every screen: from the start of the current work, as on
    the axis of the chart, to now or to the end of the work."""
    if not view.run_times:
        return view.running_s
    return (view.now if view.closed_s is None else view.closed_s) - begun_s(view)


def kept_changes(runs: Sequence[Run]) -> Knobs:
    """The knobs that the console changed in the course of `runs` and that differ from the first
    run, with their values in the end.

    The knobs of the user's own job are those that the agent has observed. They may differ without a
    change: where batches vary in size, the batch size is that of the largest batch so far. A knob
    that the program changes by itself has no value that was kept.
    """
    first, last = runs[0].knobs, runs[-1].knobs
    changes: Knobs = {
        name: last.get(name, value) for run in runs[1:] for name, value in run.changes.items()
    }
    return {
        name: value
        for name, value in changes.items()
        if first.get(name) != value and name not in runs[-1].varies
    }


class Gain(NamedTuple):
    """The rate of the current run over the rate at the start of this work. `proven`: paired blocks
    measured it. Otherwise two times are compared, and other programs may have used the machine in
    one of them."""

    ratio: float
    proven: bool

    @property
    def words(self) -> str:
        return (
            f"{units.speedup(self.ratio).strip()}"
            f" {'in trials' if self.proven else 'since start, no trial'}"
        )


def since_start(view: View) -> Gain | None:
    """The gain of all kept changes together. None where the settings are those of the start, or
    where a rate is not known."""
    runs = chain(view)
    if len(runs) < 2 or not kept_changes(runs):
        return None
    if (proven := _proven_gain(runs, view.trials)) is not None:
        return Gain(proven, True)
    (now, unit), (first, first_unit) = runs[-1].throughput, runs[0].throughput
    if now is None or first is None or unit != first_unit or first.mean <= 0:
        return None
    return Gain(now.mean / first.mean, False)


def _proven_gain(runs: Sequence[Run], trials: Sequence[Trial]) -> float | None:
    """The gain that one trial of all changes measured; else the product of the gains of all
    changes, each on top of the changes before it. None where a change was kept without a trial."""
    if (whole := proof(runs, trials)) is not None and whole.speedup is not None:
        return whole.speedup.inverse.estimate
    gain = 1.0
    for before, after in itertools.pairwise(runs):
        kept_trials = (
            trial
            for trial in trials
            if trial.holds and trial.baseline_run == before.id and trial.changes == after.changes
        )
        trial = next(kept_trials, None)
        if trial is None or trial.speedup is None:
            return None
        gain *= trial.speedup.estimate
    return gain


def proof(runs: Sequence[Run], trials: Sequence[Trial]) -> Trial | None:
    """The trial at the end of a tuning session: from the last of `runs` back to the knobs of the
    first. None before its verdict."""
    first, last = runs[0], runs[-1]
    back = {name: first.knobs[name] for name in kept_changes(runs) if name in first.knobs}
    decided = (
        trial
        for trial in trials
        if trial.state == "done" and trial.verdict not in (None, "undecided")
    )
    return next(
        (
            trial
            for trial in decided
            if back and trial.baseline_run == last.id and trial.changes == back
        ),
        None,
    )


def current_trials(view: View) -> list[Trial]:
    """The trials on the current run and on the runs that it continues, in order."""
    runs = {run.id for run in chain(view)}
    return [trial for trial in view.trials if trial.baseline_run in runs]


def suggestion_id(finding: Finding, suggestion: Suggestion) -> str:
    """An identity for a selection: the same before and after an evaluation of the rules."""
    return f"{finding.rule}: {describe_changes(suggestion.changes)}"


def suggestions(view: View) -> dict[str, tuple[Finding, Suggestion]]:
    """The suggestions that can be tried from here, of all findings that fire, in the order of the
    screen."""
    return {
        suggestion_id(finding, suggestion): (finding, suggestion)
        for finding in firing(view.run)
        for suggestion in finding.suggestions
        if can_try(view.run, suggestion)
    }


def can_try(run: Run | None, suggestion: Suggestion) -> bool:
    """Whether the console can try the suggestion on this run (see `Run.why_not`)."""
    return run is not None and not run.why_not(suggestion.changes)


def running_trial(view: View) -> Trial | None:
    return next((trial for trial in reversed(view.trials) if trial.state == "running"), None)


def shown_trial(view: View) -> Trial | None:
    """The trial that runs, or the last trial of the present work."""
    return running_trial(view) or next(reversed(current_trials(view)), None)


def percentiles(view: View) -> tuple[float | None, float | None]:
    """p50 and p99 of the recent steps, or of the summary where no recent step is known. Seconds."""
    times = sorted(view.step_times)
    if times:
        return times[(len(times) - 1) // 2], times[
            min(len(times) - 1, round(0.99 * (len(times) - 1)))
        ]
    spread = view.run.summary.step_time_s if view.run else None
    return (spread.p50, spread.p99) if spread else (None, None)
