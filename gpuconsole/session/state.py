"""The session's state: a fold over events. A live engine and a replay feed it the same way."""

from __future__ import annotations

import datetime
from collections import deque

from gpuconsole.diagnosis.modelling import refresh_figures
from gpuconsole.model.experiments.certificate import Tuning
from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.machine.device import Device, Link
from gpuconsole.model.machine.process import Process
from gpuconsole.model.metrics.catalogue import CATALOGUE, series_key
from gpuconsole.model.run import Run, Step
from gpuconsole.model.series import Series
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.figures.account import percentile
from gpuconsole.session.figures.efficiency import cost_per_million_tokens, rates_per_watt
from gpuconsole.session.run import LIVE_STEPS, RunRecord
from gpuconsole.session.serving_points import ServingPoints
from gpuconsole.wire.events import (
    AnyEvent,
    Compared,
    DeviceLost,
    Devices,
    EnvironmentKnown,
    Failed,
    Found,
    Hello,
    KnobsSet,
    Note,
    ProbeDone,
    Processes,
    Profiled,
    Progress,
    RankJoined,
    Requests,
    RunClosed,
    RunOpened,
    Sample,
    ServerState,
    SourceState,
    Started,
    Steps,
    Topology,
    TrialUpdate,
    TuningUpdate,
    Unavailable,
    Xid,
)

NOTES = 20
XIDS = 100
POINT_EVERY_S = 1.0


class SessionState:
    """Everything known about a session, bounded in memory. `apply` is the only way in."""

    def __init__(self) -> None:
        self.t0: float | None = None
        self.wall0 = 0.0
        self.now = 0.0
        self.environment = Environment()
        self.devices: list[Device] = []
        self.driver: str | None = None
        self.no_gpu_reason = ""
        self.cuda = ""
        self.unavailable: dict[str, dict[str, str]] = {}
        self.lost: dict[str, str] = {}
        self.series: dict[str, Series] = {}
        self.latest: dict[str, float] = {}
        self.sampled: dict[str, float] = {}
        self.substitutes: dict[str, str] = {}
        self.last_seen: dict[str, float] = {}
        self.processes: list[Process] = []
        self.processes_missing: dict[str, str] = {}
        self.links: list[Link] = []
        self.xids: deque[Xid] = deque(maxlen=XIDS)
        self.sources: dict[str, SourceState] = {}
        self._reasons: dict[str, str] | None = None
        self._by_device: dict[str, dict[str, tuple[str, Series | None]]] = {}
        self.records: list[RunRecord] = []
        self.trials: dict[str, Trial] = {}
        self.tuning: Tuning | None = None
        self.tuning_at = 0.0
        self._trials_begun: dict[str, float] = {}
        self.notes: deque[str] = deque(maxlen=NOTES)
        self.stage = ""
        self.stage_detail = ""
        self._serving_points = ServingPoints(self.add_point)
        self._fresh: list[Step] = []
        self._fresh_since = 0.0

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def record(self) -> RunRecord | None:
        """The current run's."""
        return self.records[-1] if self.records else None

    def reasons(self) -> dict[str, str]:
        """Why a series is missing, by its name. Made anew only when it has changed."""
        if self._reasons is None:
            found = {series_key(m, device): reason for device, reasons in self.unavailable.items() for m, reason in reasons.items()}
            for device, reason in self.lost.items():
                found |= {series_key(metric, device): f"device lost: {reason}" for metric in CATALOGUE if metric.startswith("gpu.")}
            self._reasons = found
        return self._reasons

    def session_time(self, t: float) -> float:
        return t - (self.t0 if self.t0 is not None else t)

    def wall_clock(self, t: float) -> str:
        """`t` as UTC in ISO 8601."""
        moment = datetime.datetime.fromtimestamp(self.wall0 + self.session_time(t), datetime.UTC)
        return moment.isoformat(timespec="seconds").replace("+00:00", "Z")

    def memory_used(self, device: str) -> tuple[float, float] | None:
        """Bytes in use and in all on `device`; None where they are not measured."""
        names = ("host.memory_used_bytes", "host.memory_total_bytes") if device == "cpu" else ("gpu.hbm_used_bytes", "gpu.hbm_total_bytes")
        used, total = (self.latest.get(series_key(name, device)) for name in names)
        return (used, total) if used and total else None

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
                self._set_devices(event)
            case EnvironmentKnown():
                self.environment = event.environment
            case Sample():
                self.last_seen[event.device] = self.session_time(event.t)
                for metric, value in event.values.items():
                    self.add_point(metric, event.device, event.t, value)
                if event.sources or self.substitutes:
                    self._note_sources(event)
                if self.record is not None and event.device == self.record.run.device and "gpu.energy_j" in event.values:
                    self.record.note_energy(event.values["gpu.energy_j"])
            case Unavailable():
                self.unavailable[event.device], self._reasons = event.reasons, None
                for metric in event.reasons:
                    self._forget(series_key(metric, event.device))
            case DeviceLost():
                self.lost[event.device], self._reasons = event.reason, None
                self._forget_device(event.device)
                self.notes.append(f"{event.device} is lost: {event.reason}")
            case Topology():
                self.links = event.links
            case Compared():
                for record in self.records:
                    if record.run.id == event.run:
                        record.run.baseline = event.baseline
            case Processes():
                self.processes, self.processes_missing = event.processes, event.reasons
            case Xid():
                self.xids.append(event)
                self.notes.append(f"{event.device}: XID {event.code}{f', {event.meaning}' if event.meaning else ''}")
            case SourceState():
                self.sources[event.source] = event
            case TuningUpdate():
                self.tuning, self.tuning_at = event.tuning, self.session_time(event.t)
            case TrialUpdate():
                self.trials[event.trial.id] = event.trial
                begun = self._trials_begun.setdefault(event.trial.id, event.t)
                for record in self.records:
                    if record.run.id == event.trial.baseline_run and event.trial.state in ("done", "failed"):
                        record.tried(begun, event.t)
            case Note():
                self.notes.append(event.text)
            case RunOpened():
                self._open(event)
            case (
                Progress()
                | Started()
                | RankJoined()
                | Steps()
                | Requests()
                | ServerState()
                | KnobsSet()
                | ProbeDone()
                | Profiled()
                | Failed()
                | RunClosed()
                | Found()
            ):
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
        self.records[-1].objective = event.objective
        if continued and before is not None:
            self.records[-1].carry_on(before)
        else:
            self.stage = "starting"
            for key in [key for key in self.latest if key.startswith(("workload.", "server."))]:
                self._forget(key)  # of the run before
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
            case RankJoined():
                record.ranks.join(event)
            case Steps():
                record.ranks.add(event)
                if record.ranks.leads(event.rank):
                    self.stage = "running"
                    record.add_steps(event)
                    self._add_step_points(record, event)
            case Requests() if record.serving is not None:
                self._serving_points.requests(record.run.device, record.serving.add_requests(event), event)
            case ServerState() if record.serving is not None:
                record.serving.add_state(event)
                self._serving_points.state(event)
            case ProbeDone():
                record.probe_done(event)
            case Profiled():
                record.profiled(event)
            case Failed():
                record.run.error = event.cause
                if event.detail:
                    record.error_detail = event.detail
            case RunClosed():
                record.close(event)
                self.refresh_models(record)
                record.add_cost(self.environment.price_per_hour)
                self.stage = event.state
            case Found():
                for candidate in self.records:
                    if candidate.run.id == event.run:
                        candidate.run.findings, candidate.run.signals = event.findings, event.signals
                        self.refresh_models(candidate, LIVE_STEPS if candidate.closed_t is None else None)

    def refresh_models(self, record: RunRecord, limit: int | None = None) -> None:
        """The summary over the last `limit` steady steps, and the analytical models beside it."""
        record.refresh_summary(self.devices, limit)
        refresh_figures(record.run, self.devices, self.environment.calibration)

    def add_point(self, metric: str, device: str, t: float, value: float) -> None:
        of_device = self._by_device.setdefault(device, {})
        known = of_device.get(metric)
        if known is None:
            if metric not in CATALOGUE:
                return  # a newer sampler's metric: unknown here
            key = series_key(metric, device)
            series = self.series.setdefault(key, Series(CATALOGUE[metric].source)) if CATALOGUE[metric].history else None
            known = of_device[metric] = (key, series)
        key, series = known
        at = self.session_time(t)
        if series is not None:
            series.add(at, value)
        self.latest[key] = value
        self.sampled[key] = at

    def _power_w(self, device: str) -> float | None:
        """The device's power, if it is of now."""
        key = series_key("gpu.power_w", device)
        age_s = self.session_time(self.now) - self.sampled.get(key, float("-inf"))
        period_s = max((state.period_s for state in self.sources.values()), default=1.0)
        return self.latest.get(key) if age_s <= 3 * period_s + 1 else None

    def _note_sources(self, event: Sample) -> None:
        """Which of these values came from another source than usual; the others are the usual one's again."""
        for metric in event.values:
            key = series_key(metric, event.device)
            if metric in event.sources:
                self.substitutes[key] = event.sources[metric]
            else:
                self.substitutes.pop(key, None)

    def _forget(self, key: str) -> None:
        """There is no present value any more; the history stays."""
        self.latest.pop(key, None)
        self.sampled.pop(key, None)
        self.substitutes.pop(key, None)

    def _forget_device(self, device: str) -> None:
        """Nor of its links and slices."""
        for one in [one for one in self._by_device if one == device or one.startswith(f"{device}/")]:
            for key, _ in self._by_device[one].values():
                if key.startswith("gpu."):
                    self._forget(key)

    def _set_devices(self, event: Devices) -> None:
        """A list anew: what was said of GPUs before is of handles that are no more, and another GPU has a history of its own."""
        before = {device.id: device.uuid for device in self.devices}
        for device in event.devices:
            if before.get(device.id, device.uuid) != device.uuid:
                for key, _ in self._by_device.pop(device.id, {}).values():
                    self.series.pop(key, None)
                if self.record is not None and self.record.run.device == device.id:
                    self.record.forget_energy()
        self.devices, self.driver, self.no_gpu_reason = event.devices, event.driver, event.reason
        self.cuda = event.cuda
        self.lost.clear()
        self._reasons = None
        self.links = []
        self.processes, self.processes_missing = [], {}
        known = {device.id for device in event.devices}
        self.unavailable = {
            device: reasons for device, reasons in self.unavailable.items() if not device.startswith("gpu") or device in known
        }
        for key in [key for key in self.latest if key.startswith("gpu.")]:
            self._forget(key)

    def _add_step_points(self, record: RunRecord, event: Steps) -> None:
        """The workload's own series: one point a second of step time, over the ordinary steps in it."""
        self._fresh += [step for step in event.steps if step.kind != 2]
        if not self._fresh or event.t - self._fresh_since < POINT_EVERY_S:
            return
        steps, self._fresh = self._fresh, []
        self._fresh_since = event.t
        device, wall = record.run.device, sum(step.wall_s for step in steps)
        samples, tokens = sum(step.samples for step in steps) / wall, sum(step.tokens for step in steps) / wall
        if record.serving is not None:
            points = {"workload.requests_per_s": samples, "workload.tokens_per_s": tokens}
        else:
            points = {"workload.samples_per_s": samples, "workload.memory_bytes": event.memory_bytes}
            if tokens:
                points["workload.tokens_per_s"] = tokens
            points["workload.step_time_s"] = percentile(sorted(step.wall_s for step in steps), 0.5)
        if steps[-1].loss is not None:
            points["workload.loss"] = steps[-1].loss
        flops = record.facts.get("flops_per_sample", 0.0) * samples
        if flops:
            points["workload.flops_per_s"] = flops
            peak = record.peak(self.devices)
            if peak:
                points["workload.mfu_ratio"] = flops / peak[0]
        points |= rates_per_watt(tokens, samples, flops, self._power_w(device))
        price = self.environment.price_per_hour
        if price is not None and tokens:
            points["workload.cost_per_million_tokens"] = cost_per_million_tokens(tokens, price)
        for metric, value in points.items():
            self.add_point(metric, device, event.t, value)
