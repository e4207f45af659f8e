"""Pictures of a store: what a screen shows, and what a snapshot holds."""

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
from gpuconsole.session.store import Store
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
    store: Store, *, environment: Environment, device: str, probing: str, recording: bool, recording_to: str, ended: bool
) -> View:
    record = store.record
    if record is not None and record.closed_t is None:
        record.refresh_summary(store.devices, LIVE_STEPS)
    stage = " ".join(filter(None, (store.stage, store.stage_detail))) if record is not None and record.run.state == "starting" else ""
    return View(
        now=store.session_time(store.now),
        environment=environment,
        devices=tuple(store.devices),
        device=record.run.device if record else device,
        no_gpu_reason=store.no_gpu_reason,
        latest=dict(store.latest),
        wall=store.wall0 + store.session_time(store.now) if store.wall0 else 0.0,
        sampled=dict(store.sampled),
        substitutes=dict(store.substitutes),
        last_seen=dict(store.last_seen),
        processes=tuple(store.processes),
        processes_missing=dict(store.processes_missing),
        links=tuple(store.links),
        sources=dict(store.sources),
        unavailable=dict(store.reasons()),
        lost=dict(store.lost),
        runs=tuple(msgspec.structs.replace(record.run) for record in store.records),
        trials=tuple(store.trials.values()),
        tuning=store.tuning,
        tuning_at=store.tuning_at,
        state=record.run.state if record else "",
        stage=stage,
        probing=probing,
        running_s=record.run.duration_s if record else 0.0,
        notes=tuple(store.notes),
        own_cpu_ratio=_own_cpu(store),
        recording=recording,
        recording_to=recording_to,
        ended=ended,
        step_times=_durations(record) if record else (),
    )


def bucketed(store: Store, key: str, columns: int, seconds: float) -> list[float | None]:
    """Means per bucket of `seconds / columns`, bound to the clock so that a bucket never changes once it is past."""
    series = store.series.get(key)
    if series is None or columns <= 0:
        return [None] * max(0, columns)
    width = seconds / columns
    last = int(store.session_time(store.now) / width)
    sums, counts = [0.0] * columns, [0] * columns
    times, values = series.since((last - columns + 1) * width)
    for t, value in zip(times, values, strict=True):
        index = int(t / width) - last + columns - 1
        if 0 <= index < columns:
            sums[index] += value
            counts[index] += 1
    found: list[float | None] = [total / n if n else None for total, n in zip(sums, counts, strict=True)]
    return _filled(found)


class StoreReader:
    """What a api reads straight from its store, live or recorded."""

    store: Store

    def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
        return bucketed(self.store, key, columns, seconds)

    def points(self, key: str) -> tuple[list[float], list[float]]:
        series = self.store.series.get(key)
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


def make_snapshot(store: Store, environment: Environment) -> Snapshot:
    """The session as it stands."""
    for record in store.records:
        store.refresh_models(record)
    calibration = store.records[-1].facts if store.records else {}
    measured = {name: value for name, value in calibration.items() if name in ("peak_flops_per_s", "threads")}
    return Snapshot(
        created=store.wall_clock(store.now),
        gpuconsole=__version__,
        environment=msgspec.structs.replace(environment, calibration={**environment.calibration, **measured}),
        runs=[_run_with_series(store, index) for index in range(len(store.records))],
        trials=list(store.trials.values()),
        unavailable={**store.reasons(), **({"gpu": store.no_gpu_reason} if store.no_gpu_reason else {})},
    )


def write_snapshot(snapshot: Snapshot, path: Path | None, stem: str = "gpuconsole") -> Path:
    """Write `snapshot` whole to `path`, or to a dated file of that stem here; returns where. Raises SessionError."""
    target = path or Path(f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}.json")
    try:
        write_whole(target, encode(snapshot))
    except OSError as error:
        raise SessionError(f"{target}: cannot be written: {error.strerror}") from None
    return target


def prelude(store: Store, environment: Environment, last_started: Started | None) -> list[AnyEvent]:
    """What a recording that begins in mid-session must hold first: devices, and the current run as it stands."""
    now = time.monotonic()
    events: list[AnyEvent] = [
        Devices(now, store.devices, store.driver, store.no_gpu_reason, store.cuda),
        EnvironmentKnown(now, environment),
    ]
    events += [Topology(now, store.links), Processes(now, store.processes, store.processes_missing), *store.sources.values()]
    events += [Unavailable(now, device, reasons) for device, reasons in store.unavailable.items()]
    events += [DeviceLost(now, device, reason) for device, reason in store.lost.items()]
    if store.record is not None:
        run = store.record.run
        events.append(RunOpened(now, run.id, run.scenario, run.workload, run.knobs, run.device))
        events += [msgspec.structs.replace(joined, t=now) for joined in store.record.ranks.joined]
        if last_started is not None:
            events.append(msgspec.structs.replace(last_started, t=now))
        events.append(Found(now, run.id, run.findings, run.signals))
        if run.profile is not None:
            events.append(Profiled(now, 0, run.profile))
        if run.baseline is not None:
            events.append(Compared(now, run.id, run.baseline))
        if store.record.closed_t is not None:
            events.append(RunClosed(now, run.id, run.state, run.error))
    return events


def _durations(record: RunRecord) -> tuple[float, ...]:
    """Of the recent steps; of a serving run, of the recent requests."""
    if record.serving is not None:
        return tuple(request.e2e_s for request in list(record.serving.requests)[-STEP_TIMES:] if request.e2e_s is not None)
    return tuple(step.wall_s for step in record.steady_steps(STEP_TIMES))


def _own_cpu(store: Store) -> float | None:
    """What the console and its sampler use of a core; None before both have told."""
    shares = [store.series.get(series_key("console.cpu_ratio", process)) for process in ("console", "sampler")]
    values = [series.last for series in shares if series is not None and series.last is not None]
    return sum(values) if values else None


def _run_with_series(store: Store, index: int) -> Run:
    record = store.records[index]
    start = store.session_time(record.opened_t)
    end = store.session_time(record.closed_t if record.closed_t is not None else store.now)
    series = {}
    for key, one in store.series.items():
        times, values = one.points()
        inside = [(t, v) for t, v in zip(times, values, strict=True) if start <= t <= end]
        if inside:
            stride = max(1, -(-len(inside) // SERIES_POINTS))
            kept = inside[::stride]
            source = store.substitutes.get(key, one.source)
            series[key] = SeriesData([round(t, 3) for t, _ in kept], [v for _, v in kept], source)
    for key, value in store.latest.items():  # of what hardly ever changes the present is all there is
        if key not in store.series and "/link:" not in key and start <= store.sampled[key] <= end:
            series[key] = SeriesData(
                [round(store.sampled[key], 3)], [value], store.substitutes.get(key, CATALOGUE[key.partition("{")[0]].source)
            )
    reasons = {**store.reasons(), **record.run.unavailable}
    return msgspec.structs.replace(record.run, series=series, unavailable=reasons)
