"""Compares two runs, of one or two snapshots: every metric with its difference, an interval, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gpuconsole.experiments.baselines import doubts
from gpuconsole.experiments.runs import change_of, run_rate
from gpuconsole.experiments.statistics import MIN_BLOCKS, rate_verdict
from gpuconsole.model.baseline import RateChange
from gpuconsole.model.comparison import Comparison, ComparisonVerdict, Difference, MetricChange
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import CATALOGUE as KNOBS
from gpuconsole.model.knobs.catalogue import show
from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.model.run import Distribution, Run, Summary
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.summary_figures import FIGURES
from gpuconsole.model.units import NA
from gpuconsole.session.figures.rate import Block, mean_rate

Pair = tuple[Sequence[Trial], Sequence[Trial]]
OF_THE_MACHINE = ("host", "os", "cpu", "cores", "memory_bytes", "python", "torch", "cuda", "driver", "price_per_hour")
FIRST = ("workload.", "summary.", "gpu.", "server.", "host.")
"""The order of the metrics in the report; others come last."""
ONE_FIGURE = "one number per run: no interval"
INVALID = "the numbers of a run are invalid"
FEW_POINTS = f"fewer than {MIN_BLOCKS} points in the steady state"


def compare(
    before: Run, after: Run, environments: tuple[Environment, Environment], names: tuple[str, str], trials: Pair = ((), ())
) -> Comparison:
    """`after` compared with `before`. `trials`: the trials of the two sessions. Only the steady part of a series counts, without the time of
    trials, because a trial changes the settings. Two equal runs are assumed to differ by 2 % (see `statistics`).
    No metric is judged if the numbers of a run are invalid. Where the work of the runs differs, a metric is higher or lower, never better or
    worse."""
    old, new = dict(_series(before, trials[0])), dict(_series(after, trials[1]))
    work = _work(before, after)
    steps = _knobs(before, after, [name for name in _of_work("step") if name in before.knobs and name in after.knobs])
    metrics = [_of_series(key, old[key], new[key], bool(work or (steps and "step_time_s" in key))) for key in old if key in new]
    invalid = any(run.validity is not None and run.validity.verdict == "invalid" for run in (before, after))
    if invalid:
        metrics = [None if metric is None else msgspec.structs.replace(metric, verdict="not judged", why_not=INVALID) for metric in metrics]
    singles, others = dict(_figures(before.summary)), dict(_figures(after.summary))
    metrics += [_of_figures(name, singles[name], others[name]) for name in singles if name in others]
    return Comparison(
        before=names[0],
        after=names[1],
        doubts=[f"{side}: {why}" for side, run in (("before", before), ("after", after)) if (why := doubts(run.validity))],
        environment=_environment(*environments),
        knobs=_knobs(before, after, (*before.knobs, *after.knobs)) + _commands(before, after),
        same_run=_same(before, after),
        unlike=work + _platform(before, after, environments),
        other_steps=steps,
        metrics=sorted((metric for metric in metrics if metric is not None), key=lambda metric: (_place(metric.metric), metric.metric)),
        only_before=sorted((old.keys() - new.keys()) | (singles.keys() - others.keys())),
        only_after=sorted((new.keys() - old.keys()) | (others.keys() - singles.keys())),
    )


def _same(before: Run, after: Run) -> bool:
    """Whether both are one run: the same start and the same values, at the same times of the session."""
    return bool(before.started or before.series) and all(
        getattr(before, name) == getattr(after, name) for name in ("id", "scenario", "started", "duration_s", "series")
    )


def _knobs(before: Run, after: Run, names: Iterable[str]) -> list[Difference]:
    """Those of the knobs `names` that differ. A knob that both programs change by themselves has no value to compare."""
    pairs = ((name, *(show(run.knobs[name]) if name in run.knobs else NA for run in (before, after))) for name in dict.fromkeys(names))
    vary = {*before.varies} & {*after.varies}
    return [Difference(name, old, new) for name, old, new in pairs if old != new and name not in vary]


def _work(before: Run, after: Run) -> list[Difference]:
    """The differences that make two programs of the runs: the scenario or the script; in one scenario, the shape of the model and the load."""
    if before.scenario != after.scenario:
        return [Difference("script" if before.is_job and after.is_job else "scenario", before.scenario, after.scenario)]
    if before.workload != after.workload:
        return [Difference("workload", before.workload, after.workload)]
    return _knobs(before, after, _of_work("sample"))


def _of_work(work: str) -> list[str]:
    """The knobs that give a sample other work, or a step more samples: in the order of the catalogue."""
    return [knob.name for knob in KNOBS.values() if knob.work == work]


def _platform(before: Run, after: Run, environments: tuple[Environment, Environment]) -> list[Difference]:
    """The differences of the devices of the runs, and of the software below them."""
    sides = [_platform_of(run, environment) for run, environment in zip((before, after), environments, strict=True)]
    return [Difference(name, _words(value), _words(sides[1][name])) for name, value in sides[0].items() if value != sides[1][name]]


def _platform_of(run: Run, environment: Environment) -> dict[str, str | None]:
    """The device with its name, and the versions. A job of the user's own has its own Python and torch."""
    name = next((device.name for device in environment.devices if device.id == run.device), "")
    job = run.job
    return {
        "device": f"{run.device} ({name})" if name else run.device,
        "python": (job.python if job is not None else "") or environment.python,
        "torch": (job.torch if job is not None else "") or environment.torch,
        "cuda": environment.cuda,
        "driver": environment.driver,
    }


def _commands(before: Run, after: Run) -> list[Difference]:
    """The commands of two jobs of the user's own, where they differ: by their words, or by their digests where a run has not stored the words."""
    if before.command_digest == after.command_digest:
        return []
    return [Difference("command", *(" ".join(run.command) or run.command_digest or "none" for run in (before, after)))]


def _environment(before: Environment, after: Environment) -> list[Difference]:
    """The differences in machine and software; the devices come last."""
    parts = [(name, getattr(before, name), getattr(after, name)) for name in OF_THE_MACHINE]
    there, here = (", ".join(device.name for device in side.devices) for side in (before, after))
    parts.append(("devices", there, here))
    return [Difference(name, _words(old), _words(new)) for name, old, new in parts if old != new]


def _words(value: object) -> str:
    return "none" if value in (None, "") else str(value)


def _series(run: Run, trials: Sequence[Trial]) -> Iterator[tuple[str, list[Block]]]:
    """The values of each metric in the steady part of the run with their weights, outside of its trials. Metrics of the run's device have no device name."""
    tried = [(trial.begun_s, trial.ended_s) for trial in trials if trial.baseline_run == run.id]
    windows = [(begun, ended) for begun, ended in tried if begun is not None and ended is not None]
    since = run.begun_s + (run.steady_from_s or 0.0) if run.begun_s is not None else -math.inf
    for key, data in run.series.items():
        name, _, device = key.rstrip("}").partition("{device=")
        if name.startswith("console.") or (metric := CATALOGUE.get(name)) is None or metric.unit == "":
            continue
        values = [
            Block(value, weight)
            for t, value, weight in zip(data.t, data.v, data.weights, strict=True)
            if t >= since and not any(begun <= t <= ended for begun, ended in windows)
        ]
        if values:
            yield name if device in (run.device, "server") or (name.startswith("host.") and device == "cpu") else f"{name} {device}", values


def _figures(summary: Summary) -> Iterator[tuple[str, float]]:
    """Single figures and percentiles: a snapshot holds only their value, without a spread."""
    for figure in FIGURES:
        value = getattr(summary, figure)
        if figure == "samples_per_s" and summary.requests_per_s is not None:
            continue  # a request is a sample
        if isinstance(value, Distribution):
            for share in ("p50", "p99"):
                if (percentile := getattr(value, share)) is not None:
                    yield f"summary.{figure} {share}", percentile
        elif value is not None:
            yield f"summary.{figure}", float(value)


def _of_series(key: str, before: Sequence[Block], after: Sequence[Block], other_work: bool) -> MetricChange | None:
    name = key.partition(" ")[0]
    means = mean_rate(before), mean_rate(after)
    rates = run_rate(before), run_rate(after)
    change = change_of([rates[0]], rates[1]) if rates[0] is not None and rates[1] is not None else None
    few = min(len(before), len(after)) < MIN_BLOCKS
    why_not = "" if change else FEW_POINTS if few else "a mean is 0"
    if change is None and means == (0.0, 0.0):
        return None
    return MetricChange(key, CATALOGUE[name].unit, *means, _verdict(name, change, other_work), change, why_not)


def _of_figures(key: str, before: float, after: float) -> MetricChange | None:
    name = key.removeprefix("summary.").partition(" ")[0]
    if before == after == 0.0:
        return None
    return MetricChange(key, FIGURES[name].unit, before, after, "not judged", None, ONE_FIGURE)


def _verdict(name: str, change: RateChange | None, other_work: bool) -> ComparisonVerdict:
    """Return the verdict of `rate_verdict`, as for baselines: better or worse in place of faster or slower, and higher or lower if neither direction is better, or
    the work differs."""
    if change is None:
        return "not judged"
    decided = rate_verdict(change)
    if decided == "same" or decided == "undecided":
        return decided
    better = "" if other_work else _better(name)
    if better:
        return "better" if (decided == "faster") == (better == "higher") else "worse"
    return "higher" if decided == "faster" else "lower"


def _better(name: str) -> str:
    """Which direction of the metric `name` is better. A metric of the machine or the server may be a figure of the summary too."""
    figure = FIGURES.get(name.rpartition(".")[2])
    return figure.better if figure is not None else CATALOGUE[name].better


def _place(metric: str) -> int:
    return next((place for place, prefix in enumerate(FIRST) if metric.startswith(prefix)), len(FIRST))
