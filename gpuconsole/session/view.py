"""Snapshots of the state: for a screen, for a snapshot file, and for the beginning of a recording.
Taking a snapshot changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import msgspec

from gpuconsole import __version__
from gpuconsole.model.metrics import CATALOGUE, series_key
from gpuconsole.model.run import Run, SeriesData
from gpuconsole.model.series import Weighed
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.session.api import View
from gpuconsole.session.figures.summary import summarized
from gpuconsole.session.freshness import silent_devices, slow_gpus, why_server_not_fresh
from gpuconsole.session.gpu_state import CurrentReadings, GpuState, gpu_states, worst_xids
from gpuconsole.session.machine import MachineState
from gpuconsole.session.run import LIVE_STEPS, RunRecord
from gpuconsole.session.serving import Outage
from gpuconsole.session.state import LATENCIES, SessionState
from gpuconsole.wire.events import (
    AnyEvent,
    Compared,
    DeviceLost,
    Devices,
    EnvironmentKnown,
    Found,
    JobKnown,
    Processes,
    Profiled,
    RunClosed,
    ServerKnown,
    Started,
    Topology,
    Unavailable,
)

SERIES_POINTS = 600
OF_SERVER = "server."
REPEATED = 2
"""Number of columns that repeat the previous sample if a column is narrower than the sampling
period."""

_reasons: WeakKeyDictionary[MachineState, tuple[int, dict[str, str]]] = WeakKeyDictionary()
"""The last reasons of each state, with the version of the state at that time."""


def run_now(state: SessionState, record: RunRecord) -> Run:
    """A run with its present summary. If the run has not ended: over its last LIVE_STEPS steady
    steps."""
    return summarized(
        record, state.devices, state.environment, LIVE_STEPS if record.closed_t is None else None
    )


def make_view(
    state: SessionState,
    *,
    now: float,
    environment: Environment,
    device: str,
    probing: str,
    recording: bool,
    recording_to: str,
    ended: bool,
) -> View:
    """The view for a screen at `now`, a time on the clock of the events. `device`: without a run,
    the device that the next run would use."""
    record, readings = state.record, state.readings
    now = state.session_time(max(now, state.now))
    outage = outage_now(record)
    stale = _not_fresh(state, record, now)
    stage = (
        " ".join(filter(None, (state.stage, state.stage_detail)))
        if record is not None and record.run.state == "starting"
        else ""
    )
    return View(
        now=now,
        environment=environment,
        devices=tuple(state.devices),
        device=record.run.device if record else device,
        no_gpu_reason=state.no_gpu_reason,
        latest=dict(readings.latest)
        if not stale
        else {k: v for k, v in readings.latest.items() if not k.startswith(OF_SERVER)},
        wall=state.wall0 + now if state.wall0 else 0.0,
        sampled=dict(readings.sampled),
        substitutes=dict(readings.substitutes),
        silent={} if recording else silent_devices(state, now),
        processes=tuple(state.processes),
        processes_missing=dict(state.processes_missing),
        links=tuple(state.links),
        sources=dict(state.sources),
        unavailable=dict(reasons(state)) | stale,
        lost=dict(state.lost),
        runs=tuple(run_now(state, record) for record in state.records),
        trials=tuple(state.trials.values()),
        tuning=state.tuning,
        tuning_at=state.tuning_at,
        state=record.run.state if record else "",
        stage=stage,
        probing=probing,
        running_s=record.run.duration_s if record else 0.0,
        notes=tuple(state.notes),
        own_cpu_ratio=_own_cpu(state),
        recording=recording,
        recording_to=recording_to,
        ended=ended,
        step_times=tuple(record.durations()) if record else (),
        down=outage.why if outage else "",
        down_s=max(0.0, now - state.session_time(outage.begun)) if outage else 0.0,
        run_times=tuple(state.session_time(record.opened.t) for record in state.records),
        closed_s=state.session_time(record.closed_t)
        if record is not None and record.closed_t is not None
        else None,
        sides=tuple(state.sides),
        xids=worst_xids(state.xid_times),
        ecc_before=dict(state.ecc_before),
        quiet=state.quiet.at(now),
        slow={} if recording else slow_gpus(state),
        trial_times={
            name: (state.session_time(begun), state.session_time(last))
            for name, (begun, last) in state.trial_times.items()
        },
    )


def seen_now(state: MachineState, now: float) -> CurrentReadings:
    """The machine at `now`, in session seconds, for `session/gpu_state.py`."""
    return CurrentReadings(
        state.readings.latest,
        reasons(state),
        state.lost,
        silent_devices(state, now),
        state.processes,
        state.processes_missing,
        worst_xids(state.xid_times),
        state.ecc_before,
        state.quiet.at(now),
        state.devices,
        slow_gpus(state),
    )


def states_now(state: MachineState, now: float) -> dict[str, GpuState]:
    """Return the state of each GPU and MIG slice. `now`: session seconds."""
    gpus = [device for device in state.devices if device.is_gpu]
    return gpu_states(seen_now(state, now), gpus)


def outage_now(record: RunRecord | None) -> Outage | None:
    """The outage of the model server that lasts now; None while the server answers, and after the
    end of the run."""
    return (
        record.serving.outages.current
        if record is not None and record.serving is not None and record.closed_t is None
        else None
    )


def _not_fresh(state: SessionState, record: RunRecord | None, now: float) -> dict[str, str]:
    """The reason for each series that a model server no longer reports, by key. Empty while its
    last report is fresh."""
    if record is None or record.serving is None or not (why := why_server_not_fresh(state, now)):
        return {}
    keys = (
        [series_key(metric, record.run.device) for metric in LATENCIES] if state.server_down else []
    )
    return dict.fromkeys(
        [*keys, *(key for key in state.readings.latest if key.startswith(OF_SERVER))], why
    )


def reasons(state: MachineState) -> dict[str, str]:
    """The reasons for missing series, by key."""
    memo = _reasons.get(state)
    if memo is None or memo[0] != state.reasons_version:
        by_key = {
            series_key(metric, device): reason
            for device, metrics in state.unavailable.items()
            for metric, reason in metrics.items()
        }
        for device, reason in state.lost.items():
            by_key |= {
                series_key(metric, device): f"device lost: {reason}"
                for metric in CATALOGUE
                if metric.startswith("gpu.")
            }
        memo = _reasons[state] = (state.reasons_version, by_key)
    return memo[1]


def bucketed(
    state: SessionState, key: str, now: float, columns: int, seconds: float
) -> list[float | None]:
    """Means of a series in columns of `seconds / columns`, the last column at `now`. Columns are
    aligned to the clock, so a past column never changes."""
    series = state.readings.series.get(key)
    if series is None or columns <= 0:
        return [None] * max(0, columns)
    width = seconds / columns
    last = int(state.session_time(max(now, state.now)) / width)
    sums, counts = [0.0] * columns, [0.0] * columns
    for t, value, weight in series.weighed((last - columns + 1) * width):
        index = int(t / width) - last + columns - 1
        if 0 <= index < columns:
            sums[index] += value * weight
            counts[index] += weight
    return _filled([total / n if n else None for total, n in zip(sums, counts, strict=True)])


def points(state: SessionState, key: str) -> tuple[list[float], list[float]]:
    """The whole history of a series: session seconds and values."""
    series = state.readings.series.get(key)
    return series.points() if series else ([], [])


def make_snapshot(state: SessionState, environment: Environment, now: float) -> Snapshot:
    """The session at `now`, a time on the clock of the events. The runs do not contain the figures
    of the models yet."""
    now = max(now, state.now)
    calibration = state.records[-1].facts if state.records else {}
    measured = {
        name: value
        for name, value in calibration.items()
        if name in ("peak_flops_per_s", "threads")
    }
    return Snapshot(
        created=state.wall_clock(now),
        gpuconsole=__version__,
        environment=msgspec.structs.replace(
            environment, calibration={**environment.calibration, **measured}
        ),
        runs=[run_with_series(state, record, now) for record in state.records],
        trials=state.timed_trials(),
        unavailable={
            **reasons(state),
            **({"gpu": state.no_gpu_reason} if state.no_gpu_reason else {}),
        },
    )


def prelude(
    state: SessionState, environment: Environment, last_started: Started | None, now: float
) -> list[AnyEvent]:
    """The first events of a recording that begins during a session: devices, and the present state
    of the current run."""
    events: list[AnyEvent] = [
        Devices(now, state.devices, state.driver, state.no_gpu_reason, state.cuda),
        EnvironmentKnown(now, environment),
    ]
    events += [
        Topology(now, state.links),
        Processes(now, state.processes, state.processes_missing),
        *state.sources.values(),
    ]
    events += [Unavailable(now, device, metrics) for device, metrics in state.unavailable.items()]
    events += [DeviceLost(now, device, reason) for device, reason in state.lost.items()]
    if state.record is not None:
        run = state.record.run
        events.append(
            msgspec.structs.replace(
                state.record.opened, t=now, knobs=run.knobs, device=run.device, changes={}
            )
        )
        if run.job is not None:
            events.append(JobKnown(now, 0, run.job))
        events += [msgspec.structs.replace(joined, t=now) for joined in state.record.ranks.joined]
        if last_started is not None:
            events.append(msgspec.structs.replace(last_started, t=now))
        if run.server is not None:
            events.append(ServerKnown(now, run.server))
        events.append(Found(now, run.id, run.findings, run.signals))
        if run.profile is not None:
            events.append(Profiled(now, 0, run.profile))
        if run.baseline is not None:
            events.append(Compared(now, run.id, run.baseline))
        if state.record.closed_t is not None:
            events.append(RunClosed(now, run.id, run.state, run.error))
    return events


def _filled(values: list[float | None]) -> list[float | None]:
    since, last = 0, None
    for index, value in enumerate(values):
        if value is not None:
            since, last = 0, value
        elif last is not None and since < REPEATED:
            since += 1
            values[index] = last
    return values


def _own_cpu(state: SessionState) -> float | None:
    """CPU time of the console and its sampler, in cores; None before the first report of either."""
    shares = [
        state.readings.series.get(series_key("console.cpu_ratio", process))
        for process in ("console", "sampler")
    ]
    values = [series.last for series in shares if series is not None and series.last is not None]
    return sum(values) if values else None


def run_with_series(state: SessionState, record: RunRecord, now: float) -> Run:
    """A run with its summary over all stored steps, and its series until `now`, a time on the clock
    of the events."""
    run = summarized(record, state.devices, state.environment)
    series = series_of(state, record, now, "")
    return msgspec.structs.replace(
        run, series=series, unavailable={**reasons(state), **run.unavailable}
    )


def series_of(
    state: SessionState, record: RunRecord, now: float, prefix: str
) -> dict[str, SeriesData]:
    """The series of a run until `now` whose names begin with `prefix`, by key."""
    readings = state.readings
    start = state.session_time(record.opened.t)
    end = state.session_time(record.closed_t if record.closed_t is not None else now)
    series = {}
    for key, history in readings.series.items():
        if not key.startswith(prefix):
            continue
        inside = [sample for sample in history.weighed(start) if sample.t <= end]
        if inside:
            series[key] = _thinned(inside, readings.substitutes.get(key, history.source))
    # the present value is all that is known of metrics without a history
    for key, value in readings.latest.items():
        at = readings.sampled[key]
        if (
            key.startswith(prefix)
            and key not in readings.series
            and "/link:" not in key
            and start <= at <= end
        ):
            source = readings.substitutes.get(key, CATALOGUE[key.partition("{")[0]].source)
            series[key] = SeriesData([round(at, 3)], [value], source)
    return series


def _thinned(samples: Sequence[Weighed], source: str) -> SeriesData:
    """Reduce `samples` to about SERIES_POINTS points: weighted means of successive samples, and the
    last sample unchanged."""
    stride = max(1, -(-len(samples) // SERIES_POINTS))
    t, v, w = list[float](), list[float](), list[float]()
    for first in range(0, len(samples) - 1, stride):
        group = samples[first : min(first + stride, len(samples) - 1)]
        weight = sum(sample.weight for sample in group)
        t.append(round(group[0].t, 3))
        v.append(
            sum(sample.value * sample.weight for sample in group) / weight
            if len(group) > 1
            else group[0].value
        )
        w.append(float(f"{weight:.4g}"))
    last = samples[-1]
    t, v, w = [*t, round(last.t, 3)], [*v, last.value], [*w, float(f"{last.weight:.4g}")]
    return SeriesData(t, v, source, w if len({*w}) > 1 else [])
