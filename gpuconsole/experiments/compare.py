"""Compares two runs, of one or two snapshots: every metric with its difference, an interval, and a
verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gpuconsole.experiments import clients
from gpuconsole.experiments.runs import LONE_RUN, of_blocks, ratio_of
from gpuconsole.experiments.statistics import MIN_BLOCKS, rate_verdict
from gpuconsole.experiments.throughput import (
    FREE,
    MeasuredRun,
    ThroughputRatio,
    doubts,
    steady_points,
    throughput,
)
from gpuconsole.model.comparison import (
    BaselineVerdict,
    Comparison,
    ComparisonVerdict,
    Difference,
    MetricChange,
)
from gpuconsole.model.figures import FIGURES
from gpuconsole.model.knobs.catalogue import CATALOGUE as KNOBS
from gpuconsole.model.knobs.catalogue import show
from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.model.run import Distribution, Run, Summary
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.units import NA
from gpuconsole.session.figures.rate import RateBlock, mean_rate

OF_THE_MACHINE = (
    "host",
    "os",
    "cpu",
    "cores",
    "memory_bytes",
    "python",
    "torch",
    "cuda",
    "driver",
    "price_per_hour",
)
FIRST = ("workload.", "summary.", "gpu.", "server.", "host.")
"""The order of the metrics in the report; others come last."""
ONE_FIGURE = "one number per run: no interval"
ONE_OPEN = "one run of an open loop on each side: the arrivals differ by chance"
INVALID = "the numbers of a run are invalid"
TOO_FEW_POINTS = f"fewer than {MIN_BLOCKS} points in the steady state"


def compare(before: MeasuredRun, after: MeasuredRun) -> Comparison:
    """`after` compared with `before`. Only the steady part of a series counts, without the time of
    trials, because a trial changes the settings. The verdict about the throughput is that of the
    gate and of baselines (see `throughput`); the interval of another metric comes from the same
    function. No metric is judged if the numbers of a run are invalid. Where the work of the runs
    differs, a metric is higher or lower, never better or worse."""
    old, new = before.run, after.run
    work = _work(old, new)
    steps = _knobs(
        old, new, [name for name in _of_work("step") if name in old.knobs and name in new.knobs]
    )
    blocks, others = dict(_series(before)), dict(_series(after))
    metrics = {
        key: _of_series(
            key,
            blocks[key],
            others[key],
            bool(work or (steps and "step_time_s" in key)),
            clients.of_client(old, new),
        )
        for key in blocks
        if key in others
    }
    answer = throughput([before], [after])
    if answer is not None:
        metrics |= _of_throughput(before, after, answer, bool(work))
    judged = [metric for metric in metrics.values() if metric is not None]
    if any(run.validity is not None and run.validity.verdict == "invalid" for run in (old, new)):
        judged = [
            msgspec.structs.replace(metric, verdict="not judged", why_not=INVALID)
            for metric in judged
        ]
    elif clients.of_client(old, new) and clients.is_open(new):
        judged = [
            MetricChange(
                metric.metric,
                metric.unit,
                metric.before,
                metric.after,
                "not judged",
                None,
                ONE_OPEN,
            )
            for metric in judged
        ]
    figures, beside = dict(_figures(old.summary)), dict(_figures(new.summary))
    judged += [
        metric
        for name in figures
        if name in beside
        if (metric := _of_figures(name, figures[name], beside[name])) is not None
    ]
    doubtful = [
        f"{side}: {why}"
        for side, run in (("before", old), ("after", new))
        if (why := doubts(run.validity))
    ]
    if answer is not None:
        whys = (answer.contention, "" if answer.doubt else answer.why_open())
        doubtful += [why for why in whys if why]
    environments = before.session.environment, after.session.environment
    return Comparison(
        before=before.name,
        after=after.name,
        doubts=doubtful,
        cannot_tell=clients.cannot_tell(old, new)
        + ([clients.OPEN_LOOP] if clients.of_client(old, new) and clients.is_open(new) else []),
        environment=_environment(*environments) + clients.engines(old, new),
        knobs=[]
        if clients.of_client(old, new) and work
        else _knobs(old, new, (*old.knobs, *new.knobs)) + _commands(old, new),
        same_run=_same(old, new),
        unlike=work + _platform(old, new, environments),
        other_steps=steps,
        metrics=sorted(judged, key=lambda metric: (_place(metric.metric), metric.metric)),
        only_before=sorted((blocks.keys() - others.keys()) | (figures.keys() - beside.keys())),
        only_after=sorted((others.keys() - blocks.keys()) | (beside.keys() - figures.keys())),
    )


def _same(before: Run, after: Run) -> bool:
    """Whether both are one run: the same start and the same values, at the same times of the
    session."""
    return bool(before.started or before.series) and all(
        getattr(before, name) == getattr(after, name)
        for name in ("id", "scenario", "started", "duration_s", "series")
    )


def _knobs(before: Run, after: Run, names: Iterable[str]) -> list[Difference]:
    """Those of the knobs `names` that differ. A knob that both programs change by themselves has no
    value to compare."""
    pairs = (
        (name, *(show(run.knobs[name]) if name in run.knobs else NA for run in (before, after)))
        for name in dict.fromkeys(names)
    )
    vary = {*before.varies} & {*after.varies}
    return [
        Difference(name, old, new) for name, old, new in pairs if old != new and name not in vary
    ]


def _work(before: Run, after: Run) -> list[Difference]:
    """The differences that make two programs of the runs: the scenario or the script; in one
    scenario, the shape of the model and the load."""
    if clients.of_client(before, after):
        return clients.unlike(before, after)
    if before.scenario != after.scenario:
        return [
            Difference(
                "script" if before.is_job and after.is_job else "scenario",
                before.scenario,
                after.scenario,
            )
        ]
    if before.workload != after.workload:
        return [Difference("workload", before.workload, after.workload)]
    return _knobs(before, after, _of_work("sample"))


def _of_work(work: str) -> list[str]:
    """The knobs that give a sample other work, or a step more samples: in the order of the
    catalogue."""
    return [knob.name for knob in KNOBS.values() if knob.work == work]


def _platform(
    before: Run, after: Run, environments: tuple[Environment, Environment]
) -> list[Difference]:
    """The differences of the devices of the runs, and of the software below them."""
    sides = [
        _platform_of(run, environment)
        for run, environment in zip((before, after), environments, strict=True)
    ]
    return [
        Difference(name, _words(value), _words(sides[1][name]))
        for name, value in sides[0].items()
        if value != sides[1][name]
    ]


def _platform_of(run: Run, environment: Environment) -> dict[str, str | None]:
    """The device with its name, and the versions. A job of the user's own has its own Python and
    torch."""
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
    """The commands of two jobs of the user's own, where they differ: by their words, or by their
    digests where a run has not stored the words."""
    if before.command_digest == after.command_digest:
        return []
    return [
        Difference(
            "command",
            *(" ".join(run.command) or run.command_digest or "none" for run in (before, after)),
        )
    ]


def _environment(before: Environment, after: Environment) -> list[Difference]:
    """The differences in machine and software; the devices come last."""
    parts = [(name, getattr(before, name), getattr(after, name)) for name in OF_THE_MACHINE]
    there, here = (", ".join(device.name for device in side.devices) for side in (before, after))
    parts.append(("devices", there, here))
    return [Difference(name, _words(old), _words(new)) for name, old, new in parts if old != new]


def _words(value: object) -> str:
    return "none" if value in (None, "") else str(value)


def _series(side: MeasuredRun) -> Iterator[tuple[str, list[RateBlock]]]:
    """The points of each metric in the steady part of the run, outside of its trials. Metrics of
    the run's device have no device name."""
    for key in side.run.series:
        name, _, device = key.rstrip("}").partition("{device=")
        if (
            name.startswith("console.")
            or (metric := CATALOGUE.get(name)) is None
            or metric.unit == ""
        ):
            continue
        if values := steady_points(side, key):
            own = device in (side.run.device, "server") or (
                name.startswith("host.") and device == "cpu"
            )
            yield name if own else f"{name} {device}", values


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


def _of_throughput(
    before: MeasuredRun, after: MeasuredRun, answer: ThroughputRatio, other_work: bool
) -> dict[str, MetricChange]:
    """The rows of the main rate, by metric: on the wall clock, and on the clock of the answer where
    that is another one."""
    name = f"workload.{before.run.throughput[1].replace('/s', '_per_s')}"
    clocks = {name: answer.wall, f"{name} {FREE}": answer} if answer.wall else {name: answer}
    rows = {}
    for key, ratio in clocks.items():
        old, new = (math.exp(side[0].log_rate) for side in ratio.rates)
        verdict = _worded(name, ratio.verdict, other_work)
        rows[key] = MetricChange(key, CATALOGUE[name].unit, old, new, verdict, ratio.change)
    return rows


def _of_series(
    key: str,
    before: Sequence[RateBlock],
    after: Sequence[RateBlock],
    other_work: bool,
    of_client: bool,
) -> MetricChange | None:
    """The row of a metric. `of_client`: a client sends as many requests as it is told, often few.
    So the error of a mean over them counts beside the deviation that is assumed between runs, and
    not only where it is larger."""
    name = key.partition(" ")[0]
    means = mean_rate(before), mean_rate(after)
    rates = tuple(
        rate._replace(error=math.hypot(rate.error, LONE_RUN))
        if rate is not None and of_client
        else rate
        for rate in (of_blocks(before), of_blocks(after))
    )
    change = (
        ratio_of([rates[0]], [rates[1]]).change
        if rates[0] is not None and rates[1] is not None
        else None
    )
    few = min(len(before), len(after)) < MIN_BLOCKS
    if change is None and means == (0.0, 0.0):
        return None
    if change is None:
        return MetricChange(
            key,
            CATALOGUE[name].unit,
            *means,
            "not judged",
            None,
            TOO_FEW_POINTS if few else "a mean is 0",
        )
    return MetricChange(
        key, CATALOGUE[name].unit, *means, _worded(name, rate_verdict(change), other_work), change
    )


def _of_figures(key: str, before: float, after: float) -> MetricChange | None:
    name = key.removeprefix("summary.").partition(" ")[0]
    if before == after == 0.0:
        return None
    return MetricChange(key, FIGURES[name].unit, before, after, "not judged", None, ONE_FIGURE)


def _worded(name: str, decided: BaselineVerdict, other_work: bool) -> ComparisonVerdict:
    """Return better or worse in place of faster or slower; higher or lower if neither direction of
    the metric `name` is better, or the work differs."""
    if decided not in ("faster", "slower"):
        return "undecided"
    better = "" if other_work else _better(name)
    if better:
        return "better" if (decided == "faster") == (better == "higher") else "worse"
    return "higher" if decided == "faster" else "lower"


def _better(name: str) -> str:
    """Which direction of the metric `name` is better. A metric of the machine or the server may be
    a figure of the summary too."""
    figure = FIGURES.get(name.rpartition(".")[2])
    return figure.better if figure is not None else CATALOGUE[name].better


def _place(metric: str) -> int:
    return next(
        (place for place, prefix in enumerate(FIRST) if metric.startswith(prefix)), len(FIRST)
    )
