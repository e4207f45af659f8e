"""Throughput over the time of a session, with what changed."""

from __future__ import annotations

import itertools

from gpuconsole.model.run import Run, SeriesData
from gpuconsole.report.run.runs import run_entries
from gpuconsole.report.share.document import Band, Mark, Timeline, Trace
from gpuconsole.report.share.story import Chain

NO_TRACE = "n/a: the snapshot has no series of the throughput"


def timeline(chain: Chain) -> Timeline:
    """All runs of a chain on one time axis that begins at the first step. Marks: changes of knobs. Bands: trials."""
    unit = chain.first.throughput[1]
    origin = chain.first.begun_s
    if origin is None:
        return Timeline((), unit, missing=NO_TRACE)
    traces = [_trace(f"run {run.id}", run, unit, origin) for run in chain.runs]
    verdicts = {entry.number: f"{entry.change}: {entry.verdict or 'set'}" for entry in run_entries(chain.runs, chain.trials)}
    later = zip(chain.runs[1:], traces[1:], strict=True)
    marks = [
        Mark(min([run.begun_s - origin, *trace.times[:1]]), verdicts.get(run.id, "")) for run, trace in later if run.begun_s is not None
    ]
    bands = [
        Band(one.begun_s - origin, one.ended_s - origin, chain.words(one))
        for one in chain.trials
        if one.begun_s is not None and one.ended_s is not None
    ]
    if not any(trace.values for trace in traces):
        return Timeline((), unit, missing=NO_TRACE)
    return Timeline([trace for trace in traces if trace.values], unit, marks, bands)


def side_by_side(before: Run, after: Run) -> Timeline:
    """Two runs on one time axis, each from its first step."""
    unit = before.throughput[1]
    found = [
        _trace(label, run, unit, run.begun_s or 0.0, style) for label, run, style in (("before", before, "dim"), ("after", after, "trace"))
    ]
    traces = [trace for trace in found if trace.values]
    return Timeline(traces, unit, missing="" if traces else NO_TRACE)


def _trace(label: str, run: Run, unit: str, origin: float, style: str = "trace") -> Trace:
    """The throughput of a run since `origin`, without values from before the first step."""
    data = _series(run.series, f"workload.{unit.replace('/s', '_per_s')}{{")
    points = [(t - origin, value) for t, value in zip(data.t, data.v, strict=True) if t >= origin]
    return Trace(label, [t for t, _ in points], [value for _, value in points], style)


def _series(series: dict[str, SeriesData], prefix: str) -> SeriesData:
    return next((data for key, data in series.items() if key.startswith(prefix)), SeriesData([], [], ""))


def usual_step(trace: Trace) -> float:
    """The median distance of two points in seconds; 0 for a single point."""
    steps = sorted(later - earlier for earlier, later in itertools.pairwise(trace.times))
    return steps[len(steps) // 2] if steps else 0.0


def pieces(trace: Trace) -> list[list[tuple[float, float]]]:
    """The points of a trace, divided where no value was measured for three times the usual distance of two points."""
    longest = 3 * usual_step(trace)
    found: list[list[tuple[float, float]]] = []
    for n, point in enumerate(zip(trace.times, trace.values, strict=True)):
        if not found or point[0] - trace.times[n - 1] > longest:
            found.append([])
        found[-1].append(point)
    return found
