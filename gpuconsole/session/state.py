"""The state of a session, computed from events. A live engine, a replay, the exporter and
`gpuconsole devices` all use this state."""

from __future__ import annotations

import datetime
from collections import deque
from itertools import chain

import msgspec

from gpuconsole.model import figures
from gpuconsole.model.certificate import Tuning
from gpuconsole.model.experiments import Trial, with_trials
from gpuconsole.model.finding import Finding
from gpuconsole.model.job import JobFacts
from gpuconsole.model.machine import UNKNOWN_GPU
from gpuconsole.model.memory import CARD, KEPT, OWNERS
from gpuconsole.model.metrics import series_key
from gpuconsole.model.run import of_same_job
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.figures.summary import peaks_of, summarized
from gpuconsole.session.freshness import fresh_value
from gpuconsole.session.machine import USUAL, WORKLOAD, MachineState, devices_used
from gpuconsole.session.points import SERVER_RATES, Rates, RunPoints
from gpuconsole.session.run import RunRecord
from gpuconsole.wire.events import (
    AnyEvent,
    Compared,
    EnvironmentKnown,
    Found,
    Hello,
    JobKnown,
    MemoryOwners,
    Note,
    Progress,
    Requests,
    RunClosed,
    RunOpened,
    Sample,
    ServerState,
    Steps,
    TrialUpdate,
    TuningUpdate,
)

NOTES = 20
SIDES = 1000
"""Changes of side that are kept: a trial has some tens."""
LATENCIES = tuple(figure.metric for figure in figures.LATENCIES if figure.live)
"""Series of answered requests. They have no present value while the server does not answer."""


OF_TOTALS = (
    "workload.",
    "server.prefix_hit_ratio",
    *(f"server.{name}_per_s" for name in SERVER_RATES),
)
"""Series from the totals of a watched server. They are wrong where several servers answer."""


class SessionState(MachineState):
    """The complete state of a session, with bounded memory. Only `apply` changes the state; reading
    changes nothing."""

    def __init__(self, interval_s: float = 1.0, history: bool = True) -> None:
        """`interval_s`: requested seconds between two samples. `history`: also keep the past values
        of readings."""
        super().__init__(interval_s, history)
        self.wall0 = 0.0
        self.now = 0.0
        """The time of the newest event."""
        self.environment = Environment()
        self.records: list[RunRecord] = []
        self.trials: dict[str, Trial] = {}
        self.trial_times: dict[str, tuple[float, float]] = {}
        """When each trial began, and when it was last reported, on the clock of the events."""
        self.sides: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=SIDES)
        """When the steps of the leading process changed to a side of a trial (`Step.arm`), in
        session seconds."""
        self.tuning: Tuning | None = None
        self.tuning_at = 0.0
        self.notes: deque[str] = deque(maxlen=NOTES)
        self.stage = ""
        self.stage_detail = ""
        self._points = RunPoints(self.add_point)

    # --- reading ----------------------------------------------------------------------------------

    @property
    def record(self) -> RunRecord | None:
        """The record of the current run."""
        return self.records[-1] if self.records else None

    def wall_clock(self, t: float) -> str:
        """`t` as UTC in ISO 8601; empty where no calendar has it, as in a damaged recording."""
        try:
            moment = datetime.datetime.fromtimestamp(
                self.wall0 + self.session_time(t), datetime.UTC
            )
        except (ValueError, OverflowError, OSError):
            return ""
        return moment.isoformat(timespec="seconds").replace("+00:00", "Z")

    def power_w(self, record: RunRecord) -> float | None:
        """Watts of all devices of a run; None if the power of a device is not known or not
        fresh."""
        used, _ = devices_used(record.run, record.ranks.joined, record.device_of, self.devices)
        now = self.session_time(self.now)
        powers = [
            fresh_value(self, series_key("gpu.power_w", device), device, now) for device in used
        ]
        measured = [power for power in powers if power is not None]
        return sum(measured) if measured and len(measured) == len(powers) else None

    # --- events -----------------------------------------------------------------------------------

    def apply(self, event: AnyEvent) -> None:
        if self.t0 is None:
            self.t0 = event.t
        self.now = max(self.now, event.t)
        if note := self.apply_to_machine(event):
            self.notes.append(note)
        match event:
            case Hello():
                if not self.wall0:
                    self.wall0 = event.wall_time - self.session_time(event.t)
            case EnvironmentKnown():
                self.environment = event.environment
            case TuningUpdate():
                self.tuning, self.tuning_at = event.tuning, self.session_time(event.t)
                self._judge_tuning()
            case TrialUpdate():
                self._update_trial(event)
            case Note():
                self.notes.append(event.text)
            case RunOpened():
                self._open(event)
            case Found() | Compared():
                self._conclude(event)
            case _ if self.record is not None:
                self._apply_to_run(self.record, event)

    def add_point(
        self,
        metric: str,
        device: str,
        t: float,
        value: float,
        reader: str = USUAL,
        weight: float = 1.0,
    ) -> None:
        self.readings.add(metric, device, self.session_time(t), value, reader, weight)

    def _update_trial(self, event: TrialUpdate) -> None:
        before = self.trials.get(event.trial.id)
        self.trials[event.trial.id] = event.trial
        later = before is not None and before.state != "running"  # its fate changes after its end
        if later:
            self._judge_tuning()
        else:
            begun, _ = self.trial_times.get(event.trial.id, (event.t, event.t))
            self.trial_times[event.trial.id] = begun, event.t
        for record in self.records:
            if record.run.id == event.trial.baseline_run and event.trial.state != "running":
                if not later:
                    record.tried(*self.trial_times[event.trial.id])
                self._add_trials(record, record.run.findings)

    def _judge_tuning(self) -> None:
        if self.tuning is not None:
            made = self.tuning.certificate.with_later(self.trials.values())
            self.tuning = msgspec.structs.replace(self.tuning, certificate=made)

    def _add_trials(self, record: RunRecord, findings: list[Finding]) -> None:
        """Store the findings of the run, together with what trials of the same job measured."""
        record.run.findings = self.with_trials(record, findings)

    def with_trials(self, record: RunRecord, findings: list[Finding]) -> list[Finding]:
        """Return the findings of the run, together with what trials of the same job measured."""
        run = record.run
        return with_trials(
            findings,
            self.trials.values(),
            run.id,
            of_same_job(run, (other.run for other in self.records)),
        )

    def timed_trials(self) -> list[Trial]:
        """The trials, each with the session times at which it began and was last reported."""
        times = {
            name: [self.session_time(t) for t in pair] for name, pair in self.trial_times.items()
        }
        return [
            msgspec.structs.replace(trial, begun_s=times[name][0], ended_s=times[name][1])
            for name, trial in self.trials.items()
        ]

    def _conclude(self, event: Found | Compared) -> None:
        """Apply a conclusion of the console about a run. The run may have ended before."""
        for record in self.records:
            if record.run.id == event.run:
                if isinstance(event, Compared):
                    record.run.baseline = event.baseline
                else:
                    self._add_trials(record, event.findings)
                    record.run.signals = event.signals

    def _open(self, event: RunOpened) -> None:
        self.readings.keep_all()
        before = self.record
        record = RunRecord(event, self.wall_clock(event.t))
        if event.changes and before is not None:
            record.carry_on(before)
            self._points.drop_steps()
        else:
            self.stage = "starting"
            self._points = RunPoints(self.add_point)
            self.readings.forget_all("workload.", "server.")
            self.server_down, self.server_period_s = "", 0.0
        if before is not None and before.closed_t is not None:
            before.archive(summarized(before, self.devices, self.environment))
        self.records.append(record)

    def _device_of(self, record: RunRecord, job: JobFacts) -> str:
        """The id of the device of a user's own job: by its uuid, by its process in the list of the
        driver, by its PCI address, or because there is one GPU only. Else UNKNOWN_GPU: no other GPU
        is taken for that of the job. Empty while the job has no device yet."""
        if job.device == "cpu" or not job.device:
            return job.device
        by_uuid = (
            device.id
            for device in self.devices
            if job.device_uuid and device.uuid.partition("-")[2] == job.device_uuid
        )
        by_process = (
            record.device_of[rank.pid]
            for rank in record.ranks.joined
            if rank.rank == 0 and rank.pid in record.device_of
        )
        by_address = (
            device.id
            for device in self.devices
            if device.is_gpu
            and _address(job.device_pci)
            and _address(device.facts.get("pci", "")) == _address(job.device_pci)
        )
        gpus = [device.id for device in self.devices if device.is_gpu]
        only = gpus if len(gpus) == 1 else []
        return next(chain(by_uuid, by_process, by_address, only), UNKNOWN_GPU)

    def _apply_to_run(self, record: RunRecord, event: AnyEvent) -> None:
        """Apply an event of the worker or of the sampler to the current run. A message of steps
        that comes twice counts once."""
        if isinstance(event, Steps) and record.ranks.repeats(event):
            return
        record.apply(event)
        # the session supposed the first GPU
        if isinstance(event, JobKnown) and record.ranks.leads(event.rank) and not record.seen_steps:
            record.run.device = self._device_of(record, event.facts) or record.run.device
        device, serving = record.run.device, record.serving
        match event:
            case Sample() if "gpu.energy_j" in event.values:
                uuid = next(
                    (listed.uuid for listed in self.devices if listed.id == event.device), ""
                )
                record.add_energy(event.device, uuid, event.values["gpu.energy_j"])
            case Progress():
                self.stage, self.stage_detail = event.stage, event.detail
            case Steps() if record.ranks.leads(event.rank):
                self.stage = "running"
                for step in event.steps:
                    if step.arm != self.sides[-1][1]:
                        self.sides.append((self.session_time(step.t), step.arm))
                self.readings.note_report(device, WORKLOAD, self.session_time(event.t))
                if steps := self._points.take_steps(event):
                    rates = Rates(
                        peaks_of(record, self.devices, self.environment)[0],
                        self.power_w(record),
                        self.environment.price_per_hour,
                    )
                    self._points.add_steps(record, event, steps, rates)
            case MemoryOwners() if record.ranks.leads(event.rank):
                for owner in (*OWNERS.values(), KEPT, CARD):
                    if owner.name in event.owners:
                        self.add_point(
                            owner.metric, device, event.t, event.owners[owner.name], WORKLOAD
                        )
            case Requests() if serving is not None:
                self.server_down = event.down
                if event.down:
                    self.readings.forget_all(*LATENCIES)
                if not serving.watched:
                    self._points.add_requests(device, serving.counted(event), event)
            case ServerState() if serving is not None:
                self.server_period_s = serving.period_s
                self._points.add_server_state(event, device if serving.watched else "")
                if serving.several_servers:
                    self.readings.drop_all(*OF_TOTALS)
            case RunClosed():
                self.stage = event.state


def _address(pci: str) -> tuple[int, ...]:
    """The numbers of a PCI address, with or without its function: `00000000:65:00.0` and `0:65:0`
    are the same. Empty for what is no address."""
    try:
        return tuple(int(part, 16) for part in pci.partition(".")[0].split(":")) if pci else ()
    except ValueError:
        return ()
