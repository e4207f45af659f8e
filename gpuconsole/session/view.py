"""Snapshots of the state: what a screen shows, and what a snapshot holds."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from gpuconsole import __version__
from gpuconsole.model.files import write_whole
from gpuconsole.model.metrics.catalogue import CATALOGUE, series_key
from gpuconsole.model.run import Run, SeriesData
from gpuconsole.model.snapshot import Environment, Snapshot, encode
from gpuconsole.session.api import SessionError, View
from gpuconsole.session.run import LIVE_STEPS, RunRecord
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import (
    AnyEvent,
    Compared,
    DeviceLost,
    Devices,
    EnvironmentKnown,
    Found,
    Processes,
    Profiled,
    RunClosed,
    RunOpened,
    Started,
    Topology,
    Unavailable,
)

STEP_TIMES = 1000
SERIES_POINTS = 600


def make_view(
    state: SessionState, *, environment: Environment, device: str, probing: str, recording: bool, recording_to: str, ended: bool
) -> View:
    record = state.record
    if record is not None and record.closed_t is None:
        record.refresh_summary(state.devices, LIVE_STEPS)
    stage = " ".join(filter(None, (state.stage, state.stage_detail))) if record is not None and record.run.state == "starting" else ""
    return View(
        now=state.session_time(state.now),
        environment=environment,
        devices=tuple(state.devices),
        device=record.run.device if record else device,
        no_gpu_reason=state.no_gpu_reason,
        latest=dict(state.latest),
        wall=state.wall0 + state.session_time(state.now) if state.wall0 else 0.0,
        sampled=dict(state.sampled),
        substitutes=dict(state.substitutes),
        last_seen=dict(state.last_seen),
        processes=tuple(state.processes),
        processes_missing=dict(state.processes_missing),
        links=tuple(state.links),
        sources=dict(state.sources),
        unavailable=dict(state.reasons()),
        lost=dict(state.lost),
        runs=tuple(msgspec.structs.replace(record.run) for record in state.records),
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
        step_times=_durations(record) if record else (),
    )


def bucketed(state: SessionState, key: str, columns: int, seconds: float) -> list[float | None]:
    """Means per bucket of `seconds / columns`, bound to the clock so that a bucket never changes once it is past."""
    series = state.series.get(key)
    if series is None or columns <= 0:
        return [None] * max(0, columns)
    width = seconds / columns
    last = int(state.session_time(state.now) / width)
    sums, counts = [0.0] * columns, [0] * columns
    times, values = series.since((last - columns + 1) * width)
    for t, value in zip(times, values, strict=True):
        index = int(t / width) - last + columns - 1
        if 0 <= index < columns:
            sums[index] += value
            counts[index] += 1
    found: list[float | None] = [total / n if n else None for total, n in zip(sums, counts, strict=True)]
    return _filled(found)


class StateReader:
    """What a `SessionApi` reads from its state, live or recorded."""

    state: SessionState

    def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
        return bucketed(self.state, key, columns, seconds)

    def points(self, key: str) -> tuple[list[float], list[float]]:
        series = self.state.series.get(key)
        return series.points() if series else ([], [])


def _filled(values: list[float | None]) -> list[float | None]:
    """Buckets narrower than the sampling period repeat the sample before them, for at most two columns."""
    since, last = 0, None
    for index, value in enumerate(values):
        if value is not None:
            since, last = 0, value
        elif last is not None and since < 2:
            since += 1
            values[index] = last
    return values


def make_snapshot(state: SessionState, environment: Environment) -> Snapshot:
    """The session as it stands."""
    for record in state.records:
        state.refresh_models(record)
    calibration = state.records[-1].facts if state.records else {}
    measured = {name: value for name, value in calibration.items() if name in ("peak_flops_per_s", "threads")}
    return Snapshot(
        created=state.wall_clock(state.now),
        gpuconsole=__version__,
        environment=msgspec.structs.replace(environment, calibration={**environment.calibration, **measured}),
        runs=[_run_with_series(state, index) for index in range(len(state.records))],
        trials=list(state.trials.values()),
        unavailable={**state.reasons(), **({"gpu": state.no_gpu_reason} if state.no_gpu_reason else {})},
    )


def write_snapshot(snapshot: Snapshot, path: Path | None, stem: str = "gpuconsole") -> Path:
    """Write `snapshot` whole to `path`, or to a dated file of that stem here; returns where. Raises SessionError."""
    target = path or Path(f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}.json")
    try:
        write_whole(target, encode(snapshot))
    except OSError as error:
        raise SessionError(f"{target}: cannot be written: {error.strerror}") from None
    return target


def prelude(state: SessionState, environment: Environment, last_started: Started | None) -> list[AnyEvent]:
    """What a recording that begins in mid-session must hold first: devices, and the current run as it stands."""
    now = time.monotonic()
    events: list[AnyEvent] = [
        Devices(now, state.devices, state.driver, state.no_gpu_reason, state.cuda),
        EnvironmentKnown(now, environment),
    ]
    events += [Topology(now, state.links), Processes(now, state.processes, state.processes_missing), *state.sources.values()]
    events += [Unavailable(now, device, reasons) for device, reasons in state.unavailable.items()]
    events += [DeviceLost(now, device, reason) for device, reason in state.lost.items()]
    if state.record is not None:
        run = state.record.run
        events.append(RunOpened(now, run.id, run.scenario, run.workload, run.knobs, run.device))
        events += [msgspec.structs.replace(joined, t=now) for joined in state.record.ranks.joined]
        if last_started is not None:
            events.append(msgspec.structs.replace(last_started, t=now))
        events.append(Found(now, run.id, run.findings, run.signals))
        if run.profile is not None:
            events.append(Profiled(now, 0, run.profile))
        if run.baseline is not None:
            events.append(Compared(now, run.id, run.baseline))
        if state.record.closed_t is not None:
            events.append(RunClosed(now, run.id, run.state, run.error))
    return events


def _durations(record: RunRecord) -> tuple[float, ...]:
    """Of the recent steps; of a serving run, of the recent requests."""
    if record.serving is not None:
        return tuple(request.e2e_s for request in list(record.serving.requests)[-STEP_TIMES:] if request.e2e_s is not None)
    return tuple(step.wall_s for step in record.steady_steps(STEP_TIMES))


def _own_cpu(state: SessionState) -> float | None:
    """What the console and its sampler use of a core; None before both have told."""
    shares = [state.series.get(series_key("console.cpu_ratio", process)) for process in ("console", "sampler")]
    values = [series.last for series in shares if series is not None and series.last is not None]
    return sum(values) if values else None


def _run_with_series(state: SessionState, index: int) -> Run:
    record = state.records[index]
    start = state.session_time(record.opened_t)
    end = state.session_time(record.closed_t if record.closed_t is not None else state.now)
    series = {}
    for key, one in state.series.items():
        times, values = one.points()
        inside = [(t, v) for t, v in zip(times, values, strict=True) if start <= t <= end]
        if inside:
            stride = max(1, -(-len(inside) // SERIES_POINTS))
            kept = inside[::stride]
            source = state.substitutes.get(key, one.source)
            series[key] = SeriesData([round(t, 3) for t, _ in kept], [v for _, v in kept], source)
    for key, value in state.latest.items():  # of what hardly ever changes the present is all there is
        if key not in state.series and "/link:" not in key and start <= state.sampled[key] <= end:
            series[key] = SeriesData(
                [round(state.sampled[key], 3)], [value], state.substitutes.get(key, CATALOGUE[key.partition("{")[0]].source)
            )
    reasons = {**state.reasons(), **record.run.unavailable}
    return msgspec.structs.replace(record.run, series=series, unavailable=reasons)
