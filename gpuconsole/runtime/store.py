"""The session's state: a fold over events. A live engine and a replay feed it the same way."""

from __future__ import annotations

import datetime
from collections import deque

from gpuconsole.diagnosis.account import percentile
from gpuconsole.model.device import Device
from gpuconsole.model.metrics import CATALOGUE, series_key
from gpuconsole.model.run import Run, Step
from gpuconsole.model.series import Series
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.trial import Trial
from gpuconsole.runtime.run_record import RunRecord
from gpuconsole.wire.events import (
    AnyEvent,
    DeviceLost,
    Devices,
    EnvironmentKnown,
    Failed,
    Found,
    Hello,
    KnobsSet,
    Note,
    ProbeDone,
    Progress,
    RunClosed,
    RunOpened,
    Sample,
    Started,
    Steps,
    TrialUpdate,
    Unavailable,
)

NOTES = 20
POINT_EVERY_S = 1.0


class Store:
    """Everything known about a session, bounded in memory. `apply` is the only way in."""

    def __init__(self) -> None:
        self.t0: float | None = None
        self.wall0 = 0.0
        self.now = 0.0
        self.environment = Environment()
        self.devices: list[Device] = []
        self.driver: str | None = None
        self.no_gpu_reason = ""
        self.unavailable: dict[str, dict[str, str]] = {}
        self.lost: dict[str, str] = {}
        self.series: dict[str, Series] = {}
        self.records: list[RunRecord] = []
        self.trials: dict[str, Trial] = {}
        self.notes: deque[str] = deque(maxlen=NOTES)
        self.stage = ""
        self.stage_detail = ""
        self._fresh: list[Step] = []
        self._fresh_since = 0.0

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def record(self) -> RunRecord | None:
        """The current run's."""
        return self.records[-1] if self.records else None

    def latest(self) -> dict[str, float]:
        return {key: series.last for key, series in self.series.items() if series.last is not None}

    def reasons(self) -> dict[str, str]:
        """Why a series is missing, by its name."""
        found = {series_key(m, device): reason for device, reasons in self.unavailable.items() for m, reason in reasons.items()}
        for device, reason in self.lost.items():
            found |= {series_key(metric, device): f"device lost: {reason}" for metric in CATALOGUE if metric.startswith("gpu.")}
        return found

    def session_time(self, t: float) -> float:
        return t - (self.t0 if self.t0 is not None else t)

    def wall_clock(self, t: float) -> str:
        """`t` as UTC in ISO 8601."""
        moment = datetime.datetime.fromtimestamp(self.wall0 + self.session_time(t), datetime.UTC)
        return moment.isoformat(timespec="seconds").replace("+00:00", "Z")

    def memory_used(self, device: str) -> tuple[float, float] | None:
        """Bytes in use and in all on `device`; None where they are not measured."""
        names = ("host.memory_used_bytes", "host.memory_total_bytes") if device == "cpu" else ("gpu.hbm_used_bytes", "gpu.hbm_total_bytes")
        used, total = (self.series.get(series_key(name, device)) for name in names)
        if used is None or total is None or not used.last or not total.last:
            return None
        return used.last, total.last

    # --- events ---------------------------------------------------------------------------------------------

    def apply(self, event: AnyEvent) -> None:
        if self.t0 is None:
            self.t0 = event.t
        self.now = max(self.now, event.t)
        match event:
            case Hello():
                if not self.wall0:
                    self.wall0 = event.wall_time - self.session_time(event.t)
            case Devices():
                self.devices, self.driver, self.no_gpu_reason = event.devices, event.driver, event.reason
            case EnvironmentKnown():
                self.environment = event.environment
            case Sample():
                for metric, value in event.values.items():
                    self.add_point(metric, event.device, event.t, value)
                if self.record is not None and event.device == self.record.run.device and "gpu.energy_j" in event.values:
                    self.record.note_energy(event.values["gpu.energy_j"])
            case Unavailable():
                self.unavailable[event.device] = event.reasons
                for metric in event.reasons:
                    self.series.pop(series_key(metric, event.device), None)
            case DeviceLost():
                self.lost[event.device] = event.reason
                self.notes.append(f"{event.device} is lost: {event.reason}")
            case TrialUpdate():
                self.trials[event.trial.id] = event.trial
            case Note():
                self.notes.append(event.text)
            case RunOpened():
                self._open(event)
            case Progress() | Started() | Steps() | KnobsSet() | ProbeDone() | Failed() | RunClosed() | Found():
                self._apply_to_run(event)

    def _open(self, event: RunOpened) -> None:
        before = self.record
        continued = bool(event.changes) and before is not None
        run = Run(
            id=event.run,
            scenario=event.scenario,
            workload=event.workload,
            knobs=event.knobs,
            device=event.device,
            started=self.wall_clock(event.t),
            changes=event.changes,
        )
        self.records.append(RunRecord(run, event.t))
        if continued and before is not None:
            self.records[-1].carry_on(before)
        else:
            self.stage = "starting"
        self._fresh = []

    def _apply_to_run(self, event: AnyEvent) -> None:
        record = self.record
        if record is None:
            return
        match event:
            case Progress():
                self.stage, self.stage_detail = event.stage, event.detail
            case Started():
                record.started(event)
            case Steps():
                self.stage = "running"
                record.add_steps(event)
                self._add_step_points(record, event)
            case ProbeDone():
                record.probe_done(event)
            case Failed():
                record.run.error = event.cause
                if event.detail:
                    record.error_detail = event.detail
            case RunClosed():
                record.close(event)
                record.refresh_summary(self.devices)
                self.stage = event.state
            case Found():
                for candidate in self.records:
                    if candidate.run.id == event.run:
                        candidate.run.findings, candidate.run.signals = event.findings, event.signals

    def add_point(self, metric: str, device: str, t: float, value: float) -> None:
        key = series_key(metric, device)
        series = self.series.get(key)
        if series is None:
            if metric not in CATALOGUE:
                return  # a newer sampler's metric: unknown here
            series = self.series[key] = Series(CATALOGUE[metric].source)
        series.add(self.session_time(t), value)

    def _add_step_points(self, record: RunRecord, event: Steps) -> None:
        """The workload's own series: one point a second of step time, over the ordinary steps in it."""
        self._fresh += [step for step in event.steps if step.kind != 2]
        if not self._fresh or event.t - self._fresh_since < POINT_EVERY_S:
            return
        steps, self._fresh = self._fresh, []
        self._fresh_since = event.t
        device, wall = record.run.device, sum(step.wall_s for step in steps)
        samples, tokens = sum(step.samples for step in steps), sum(step.tokens for step in steps)
        points = {"workload.samples_per_s": samples / wall, "workload.memory_bytes": event.memory_bytes}
        if tokens:
            points["workload.tokens_per_s"] = tokens / wall
        points["workload.step_time_s"] = percentile(sorted(step.wall_s for step in steps), 0.5)
        if steps[-1].loss is not None:
            points["workload.loss"] = steps[-1].loss
        flops = record.facts.get("flops_per_sample")
        if flops:
            points["workload.flops_per_s"] = flops * samples / wall
            peak = record.peak(self.devices)
            if peak:
                points["workload.mfu_ratio"] = flops * samples / wall / peak[0]
        for metric, value in points.items():
            self.add_point(metric, device, event.t, value)
