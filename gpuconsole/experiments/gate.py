"""The gate of `gpuconsole compare BASE NEW --fail-below LIMIT`: no regression, a regression, or
undecided.

The ratio of the two sides and its interval come from `throughput`, as in `compare` and in the
comparison with baselines. The sides may be unequally noisy.

**The decision.** `regression`: the whole interval is below the limit. `no regression`: the whole
interval is above it. Otherwise `undecided`. So a change whose true ratio is the limit or better is
called a regression at most once in 40 times, and an A/A pair far less often. A side with one run or
one occasion cannot show its noise: the gate assumes that its runs differ by LONE_RUN. If they
differ by more, false alarms are more frequent (`python -m benchmarks.gate.simulated` prints the
table).
In an open loop the client sets the throughput. There the ratio is that of the speeds 1 / mean E2E,
and at least MIN_OPEN_RUNS runs of each side decide. The limit is at most MAX_LIMIT: then a
regression is also a proven loss by the rule of a trial (`verdict`), which counts differences below
2 % as none. Where the load of other programs differs between the sides, this load can explain a
difference of its own size: a decision must hold with that allowance.

**How many runs.** An undecided answer gives a number of runs of each side, measured in turn. So
many runs decide the measured ratio, at this noise, with the probability POWER. The distance of the
ratio from the limit counts as at least a third of the distance between 1 and the limit: a ratio
nearer than that is there by chance, or the true ratio is the limit, which no number of runs
decides. While the noise is assumed, the ratio of so few runs says little: its distance then counts
as at least the distance between 1 and the limit. Each decision with more runs adds a chance of 1 in
40 of a false alarm: two decisions do no harm, twenty do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from statistics import NormalDist

from gpuconsole.experiments import clients
from gpuconsole.experiments.compare import compare
from gpuconsole.experiments.runs import RunRate, batches, squares_in
from gpuconsole.experiments.statistics import (
    ALPHA,
    MINIMUM_EFFECT,
    NORMAL_975,
    RUN_TO_RUN,
    USUAL_RUNS,
    student_quantile,
)
from gpuconsole.experiments.throughput import (
    FREE,
    MeasuredRun,
    ThroughputRatio,
    answer_speed,
    keyed,
    throughput,
    why_no_rate,
)
from gpuconsole.model.comparison import (
    Comparison,
    Difference,
    Gate,
    GateFigure,
    GateFinding,
    GateRatio,
    GateVerdict,
)
from gpuconsole.model.run import IN_A_STEP, Distribution, Run
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.text import percent, visible
from gpuconsole.session.facts import firing

MAX_LIMIT = 0.98
"""The highest limit: 1 / exp(MINIMUM_EFFECT), rounded."""
MIN_LIMIT = 0.5
NEAREST = 1 / 3
"""The least distance from the limit for which runs are planned, as a share of the distance between
1 and the limit."""
MAX_NEEDED = 1000
DEGREES = 4
"""From this number of degrees of freedom on, runs are planned by the measured noise alone."""
POWER = 0.8
"""Probability of a decision after the number of runs that an undecided answer names; usual for the
size of an experiment (Cohen 1988)."""
_BEYOND = NormalDist().inv_cdf(POWER)
MIN_SHARE = 0.02
"""A part of the step with a smaller share on both sides has no row."""
MIN_OPEN_RUNS = 3
TOO_FEW_OPEN_RUNS = (
    "in an open loop, E2E depends on the arrivals, which differ from run to run by chance, and too"
    f" few runs show how much: {MIN_OPEN_RUNS} runs of each side or more, measured in turn, are"
    " needed"
)
NO_E2E = (
    "in an open loop the client sets the throughput, so E2E is judged, and a file has none: `vllm"
    " bench serve` writes it with --save-detailed, or --percentile-metrics ttft,tpot,itl,e2el"
)
VERSIONS = ("python", "torch", "cuda", "driver")
"""Differences between the sides that a gate may be asked about: a slower version is a regression,
too."""
HARDWARE = ("cpu", "cores")

Read = Callable[[Run], float | None]

assert math.log(MAX_LIMIT) <= -MINIMUM_EFFECT  # see "The decision"


class GateError(ValueError):
    """The runs cannot be compared. The message is one line."""


# --- the decision ---------------------------------------------------------------------------------


def decide(ratio: GateRatio, fail_below: float, excused: float = 0.0) -> GateVerdict:
    """The verdict. `excused`: see `Throughput`."""
    if ratio.high < fail_below * (1 - max(0.0, excused)):
        return "regression"
    return "no regression" if ratio.low * (1 - max(0.0, -excused)) > fail_below else "undecided"


def runs_needed(
    spread: float, ratio: float, fail_below: float, nearest: float = NEAREST
) -> int | None:
    """Runs of each side, in turn, after which a run-to-run standard deviation `spread` decides
    `ratio` against the limit with the probability POWER: 3 or more, None above MAX_NEEDED.
    `nearest`: the least distance from the limit, as a share of that between 1 and the limit."""
    limit = math.log(fail_below)
    distance = max(abs(math.log(ratio) - limit), nearest * abs(limit))
    least = max(
        3, math.ceil(2 * ((NORMAL_975 + _BEYOND) * spread / distance) ** 2)
    )  # with the normal quantile, which is below that of Student's t
    return next(
        (
            n
            for n in range(least, MAX_NEEDED + 1)
            if (student_quantile(2 * n - 2, ALPHA) + _BEYOND) * spread * math.sqrt(2 / n) < distance
        ),
        None,
    )


# --- the runs -------------------------------------------------------------------------------------


def judge(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], fail_below: float) -> Gate:
    """The decision about `new` against `base`. Raises GateError where the runs are not comparable,
    or have no rate."""
    comparisons = _checked(base, new)
    is_open = clients.is_open(base[0].run)
    answer = answer_speed(base, new) if is_open else throughput(base, new)
    if answer is None:  # see _check_run
        raise GateError(NO_E2E)
    verdict, why, needed = decide(answer.ratio, fail_below, answer.excused), "", 0
    if why_open := answer.why_open(lambda ratio, excused: decide(ratio, fail_below, excused)):
        verdict, why = "undecided", why_open
    elif is_open and answer.ratio.assumed:
        verdict, why, needed = "undecided", TOO_FEW_OPEN_RUNS, MIN_OPEN_RUNS
    elif verdict == "undecided" and decide(answer.ratio, fail_below) != "undecided":
        why = f"{answer.contention}: this alone may be the difference"
    elif verdict == "undecided":
        why, needed = _too_noisy(answer.ratio, answer.rates, fail_below)
    first = base[0].run
    return Gate(
        verdict=verdict,
        ratio=answer.ratio,
        fail_below=fail_below,
        base_runs=len(base),
        new_runs=len(new),
        scenario=_title(first),
        device=f"{first.device} ({base[0].device_name})" if base[0].device_name else first.device,
        clock="contention_free" if answer.free else "wall",
        needed=needed,
        why=why,
        judged="e2e" if is_open else "throughput",
        cannot_tell=clients.cannot_tell(first, new[0].run),
        figures=_figures(base, new, answer),
        findings=_findings(base, new),
        differences=_differences(comparisons[len(base) - 1 :]),
    )


def _title(run: Run) -> str:
    """The scenario; of another client, also the model."""
    model = run.server.model if run.client and run.server is not None else None
    return f"{run.scenario}, {model.value}" if model is not None else run.scenario


def _too_noisy(
    ratio: GateRatio, rates: Sequence[Sequence[RunRate]], fail_below: float
) -> tuple[str, int]:
    """Why the noise leaves the gate undecided, and the number of runs that are needed."""
    spread = RUN_TO_RUN if ratio.assumed else ratio.spread
    if not ratio.in_turn:
        squares, degrees = squares_in(
            [[run.log_rate for run in unit] for side in rates for unit in batches(side)]
        )
        within = statistics.fmean(run.error**2 for side in rates for run in side)
        spread = math.sqrt(
            squares / degrees
            if degrees >= DEGREES
            else max((USUAL_RUNS * RUN_TO_RUN**2 + squares) / (USUAL_RUNS + degrees), within)
        )
    needed = runs_needed(spread, ratio.estimate, fail_below, 1.0 if ratio.assumed else NEAREST)
    count = f"more than {MAX_NEEDED}" if needed is None else f"about {needed}"
    what = "are assumed to differ" if ratio.assumed else "differ"
    noise = (
        f"equal {'runs' if ratio.in_turn else 'occasions'} {what} by {percent(ratio.spread, 1)}"
        " (standard deviation)"
    )
    if ratio.in_turn:
        return (
            f"{noise}: {count} runs of each side, measured in turn, are needed",
            needed or MAX_NEEDED,
        )
    times = " and ".join(
        f"{number} occasion{'' if number == 1 else 's'}" for number in ratio.occasions
    )
    return (
        (
            f"BASE and NEW were measured apart ({times}), and {noise}: {count} runs of each side,"
            " measured in turn, are needed"
        ),
        needed or MAX_NEEDED,
    )


def _checked(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> list[Comparison]:
    """The comparison of the first run with each other run. Raises GateError."""
    first, *others = *base, *new
    names: dict[tuple[str, float], str] = {}
    for side in (first, *others):
        _check_run(side)
        begun = side.run.started, side.run.duration_s
        if (side.run.started or side.run.client) and begun in names:
            raise GateError(f"{names[begun]} and {side.name} are the same run: a run counts once")
        names[begun] = side.name
    comparisons = []
    for side in others:
        comparison = compare(first, side)
        unlike = [changed for changed in comparison.unlike if changed.name not in VERSIONS]
        unlike += [changed for changed in comparison.environment if changed.name in HARDWARE]
        unlike += [changed for changed in comparison.knobs if changed.name == "command"]
        if unlike:
            what = "; ".join(
                f"{changed.name} {changed.before} -> {changed.after}" for changed in unlike
            )
            raise GateError(visible(f"{first.name} and {side.name} are not comparable: {what}"))
        if first.run.throughput[1] != side.run.throughput[1]:
            raise GateError(
                f"{first.name} counts {first.run.throughput[1]}, {side.name} counts"
                f" {side.run.throughput[1]}"
            )
        comparisons.append(comparison)
    return comparisons


def _check_run(side: MeasuredRun) -> None:
    """Raises GateError for a run that has no rate of one setting."""
    if why := why_no_rate(side):
        raise GateError(f"{side.name}: {why}")
    if any(trial.baseline_run == side.run.id for trial in side.session.trials):
        raise GateError(
            f"{side.name}: settings were tried in this run: measure without --try, --apply-top and"
            " tune"
        )


def work_key(run: Run, environment: Environment) -> str:
    """Names what the runs of a gate must have in common: the scenario or the command, and the
    hardware. A key of a cache: letters, digits and `-`.

    Versions are not part of it: a slower version of torch is a regression, too.
    """
    name = next(
        (device.name for device in environment.devices if device.id == run.device), run.device
    )
    parts = (
        run.scenario,
        run.command_digest,
        run.workload,
        name,
        environment.cpu,
        str(environment.cores),
    )
    return keyed(f"{run.scenario}-{name}", parts)


# --- what the comment shows -----------------------------------------------------------------------


def _figures(
    base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], answer: ThroughputRatio
) -> list[GateFigure]:
    """Throughput, step time, parts of the step, peak memory; of serving runs the latencies."""
    first, unit = base[0].run, base[0].run.throughput[1]
    reads: list[tuple[str, str, Read]] = [("throughput", unit, _rate_of)]
    if first.serves:
        times, percentiles = (
            (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E")),
            ("p50", "p99") if first.client else ("p50",),
        )
        reads += [
            (f"{title} {share}", "s", partial(_percentile, field, share))
            for field, title in times
            for share in percentiles
        ]
    else:
        shares = [side.run.summary.phases_ratio for side in (*base, *new)]
        parts = [
            part for part in IN_A_STEP if max(share.get(part, 0.0) for share in shares) >= MIN_SHARE
        ]
        reads.append(
            (
                "step time",
                "s",
                lambda run: run.summary.step_time_s.mean if run.summary.step_time_s else None,
            )
        )
        reads += [(f"step: {part}", "s", partial(_part_s, part)) for part in parts]
    reads.append(("memory peak", "bytes", lambda run: run.summary.memory_peak_bytes))
    rows = [_figure(name, unit, base, new, read) for name, unit, read in reads]
    if answer.free:
        means = (statistics.fmean(math.exp(run.log_rate) for run in side) for side in answer.rates)
        rows.insert(1, GateFigure(f"throughput {FREE}", unit, *means))
    return [row for row in rows if row.base is not None or row.new is not None]


def _rate_of(run: Run) -> float | None:
    """Work per second, on the wall clock."""
    return run.throughput[0].mean if run.throughput[0] is not None else None


def _percentile(field: str, share: str, run: Run) -> float | None:
    latency: Distribution | None = getattr(run.summary, field)
    return getattr(latency, share) if latency is not None else None


def _part_s(part: str, run: Run) -> float | None:
    """Seconds of a part in a mean step."""
    step = run.summary.step_time_s
    return run.summary.phases_ratio.get(part, 0.0) * step.mean if step is not None else None


def _figure(
    name: str, unit: str, base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], read: Read
) -> GateFigure:
    sides = [
        [value for side in runs if (value := read(side.run)) is not None] for runs in (base, new)
    ]
    return GateFigure(
        name, unit, *(statistics.fmean(values) if values else None for values in sides)
    )


def _findings(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> list[GateFinding]:
    """The findings that fire in more than half of the runs of one side, and in at most half of the
    other: the new ones first. Without notes."""
    titles: dict[str, str] = {}
    counts: dict[str, list[int]] = {}
    for number, side in (
        (number, side) for number, runs in enumerate((base, new)) for side in runs
    ):
        for rule, title in {
            finding.rule: finding.title for finding in firing(side.run) if not finding.note
        }.items():
            titles[rule] = title
            counts.setdefault(rule, [0, 0])[number] += 1
    moved = [
        GateFinding(rule, titles[rule], old, now)
        for rule, (old, now) in counts.items()
        if (old > len(base) / 2) != (now > len(new) / 2)
    ]
    return sorted(moved, key=lambda finding: finding.base > len(base) / 2)


def _differences(comparisons: Sequence[Comparison]) -> list[Difference]:
    """Versions and settings that differ between the first base run and a new run, each once."""
    differences = [
        changed
        for comparison in comparisons
        for changed in (
            *(changed for changed in comparison.unlike if changed.name in VERSIONS),
            *comparison.knobs,
        )
    ]
    return list(dict.fromkeys(differences))
