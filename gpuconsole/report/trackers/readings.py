"""What a tracker is, and what a tracker gets of a session: values by name, facts, and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from gpuconsole.model.figures import FIGURES
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.report.experiments import verdict_line
from gpuconsole.session.api import View


class MetricReading(NamedTuple):
    """A value of the metric catalogue, the share of a phase of the step, or a figure of a run's
    summary. `device`: such as `gpu:0`; empty for a figure."""

    metric: str
    device: str
    value: float

    @property
    def name(self) -> str:
        """The name in a tracker that has no labels: `gpu.power_w/gpu:0`. Values of the run have the
        metric's name alone."""
        return (
            self.metric
            if not self.device or self.metric.startswith("workload.")
            else f"{self.metric}/{self.device}"
        )


class Point(NamedTuple):
    """Readings of one moment. `wall`: Unix time; `elapsed_s`: seconds since the session began."""

    wall: float
    elapsed_s: float
    readings: tuple[MetricReading, ...]


class TrackerEvent(NamedTuple):
    """Something that happened: a finding, or the end of a trial. `kind`: `finding` or `trial`;
    `name`: the rule, or the changes."""

    wall: float
    elapsed_s: float
    kind: str
    name: str
    text: str


class Final(NamedTuple):
    """The end of the session: the figures of its last run. `page` makes the page of the session as
    HTML, which takes a second for a long session."""

    point: Point
    page: Callable[[], str]


class SessionFacts(NamedTuple):
    """What does not change while the session runs: the machine, its software and the settings at
    the start. `command`: the command line, where the user wants it published (`--log-command`); it
    is one of `values` too."""

    title: str
    values: Mapping[str, str]
    command: str = ""


class Tracker(Protocol):
    """A tracker that is open. Each method may take long, and may raise anything. All calls come
    from one thread."""

    def begin(self, facts: SessionFacts) -> None: ...

    def log(self, point: Point) -> None: ...

    def note(self, event: TrackerEvent) -> None: ...

    def end(self, final: Final) -> None: ...


class ViewReader:
    """Takes what is new from views of one session."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._findings: set[tuple[str, str]] = set()
        self._trials: set[str] = set()

    def point(self, view: View) -> Point | None:
        """The values that are newer than those of the last call, and the shares of the step. Links
        and other parts of a device are left out."""
        readings = []
        for key, value in view.latest.items():
            metric, _, device = key.removesuffix("}").partition("{device=")
            at = view.sampled.get(key, view.now)
            if "/" in device or self._at.get(key, -1.0) >= at:
                continue
            self._at[key] = at
            readings.append(MetricReading(metric, device, value))
        if view.run is not None and any(
            reading.metric.startswith("workload.") for reading in readings
        ):
            readings += [
                MetricReading(f"phase.{phase}", "", share)
                for phase, share in view.run.summary.phases_ratio.items()
            ]
        return Point(view.wall, view.now, tuple(readings)) if readings else None

    def events(self, view: View) -> list[TrackerEvent]:
        """Findings that fire for the first time in their run, and trials that have ended."""
        events = []
        run = view.run
        for finding in run.findings if run is not None else ():
            if (
                run is not None
                and finding.state == "fires"
                and (run.id, finding.rule) not in self._findings
            ):
                self._findings.add((run.id, finding.rule))
                events.append(
                    TrackerEvent(
                        view.wall,
                        view.now,
                        "finding",
                        finding.rule,
                        f"{finding.title}. {finding.summary}".strip(),
                    )
                )
        for trial in view.trials:
            if trial.state != "running" and trial.id not in self._trials:
                self._trials.add(trial.id)
                events.append(
                    TrackerEvent(
                        view.wall,
                        view.now,
                        "trial",
                        describe_changes(trial.changes),
                        verdict_line(trial),
                    )
                )
        return events


def facts_of(environment: Environment, view: View, command: str = "") -> SessionFacts:
    """Of the session whose run has begun. `command`: see `SessionFacts`."""
    run = view.run
    machine = {
        "host": environment.host,
        "os": environment.os,
        "cpu": environment.cpu,
        "cores": environment.cores,
        "python": environment.python,
        "torch": environment.torch,
        "cuda": environment.cuda,
        "driver": environment.driver,
        "command": command,
        "devices": ", ".join(
            f"{device.id} {device.name}" for device in environment.devices if device.is_gpu
        ),
    }
    settings = {
        f"setting.{name}": value
        for name, value in (run.settings if run is not None else {}).items()
    }
    title = f"gpuconsole {run.scenario}" if run is not None else "gpuconsole"
    return SessionFacts(
        title,
        {
            name: str(value)
            for name, value in {**machine, **settings}.items()
            if value not in (None, "")
        },
        command,
    )


def summary_point(snapshot: Snapshot, wall: float, elapsed_s: float) -> Point:
    """The figures of the last run, each as `summary.` and its name in the snapshot; of a
    distribution the mean."""
    readings = []
    summary = snapshot.runs[-1].summary if snapshot.runs else None
    for field in FIGURES if summary is not None else ():
        value = getattr(summary, field)
        number = (
            value
            if isinstance(value, (int, float)) or value is None
            else getattr(value, "mean", None)
        )
        if number is not None:
            readings.append(MetricReading(f"summary.{field}", "", float(number)))
    for phase, share in (summary.phases_ratio if summary is not None else {}).items():
        readings.append(MetricReading(f"summary.phase.{phase}", "", share))
    return Point(wall, elapsed_s, tuple(readings))
