"""Compares a run with its baseline: the verdict, and the result in words."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from gpuconsole.experiments.statistics import MIN_BLOCKS, RUN_TO_RUN, RUNS_FOR_SPREAD, rate_change, rate_verdict
from gpuconsole.model.experiments.baseline import Baseline, BaselineComparison, BaselineKey, BaselineRun, BaselineVerdict, RateChange
from gpuconsole.model.knobs.knob import Knobs, Value, show
from gpuconsole.model.run import Validity
from gpuconsole.model.text import percent, visible
from gpuconsole.report import units

RUN_QUEUE_DIFFERS = 0.15
"""The threshold of rule host.cpu_contention. Below this share, verdicts on contention-free time are correct."""
OTHERS_DIFFER = WAITING_DIFFERS = 0.20
"""Minimum load that the signals of rule host.cpu_contention count as contention (docs/diagnosis.md)."""
WORTH_REPORTING = 0.02
"""Run-queue delay below this share is less than the smallest relevant difference, so the result does not mention it."""
FEW_RUNS = f"runs are assumed to differ by {percent(RUN_TO_RUN)} until {RUNS_FOR_SPREAD} runs are kept"


def doubts(validity: Validity | None) -> str:
    """Why the figures of a serving run cannot be trusted: `its figures are degraded: ...`; empty if they can."""
    if validity is None or validity.verdict == "valid":
        return ""
    return visible(f"its figures are {validity.verdict}: {'; '.join(validity.reasons)}")


def compare(now: BaselineRun, baseline: Baseline, live: bool = False, validity: Validity | None = None) -> BaselineComparison:
    """`now` compared with the runs kept under its key. `live`: the run is still going on. A run whose figures are invalid is not compared. If
    they are degraded, the result has no verdict: the difference may come from what degraded the run."""
    if validity is not None and validity.verdict == "invalid":
        return BaselineComparison(
            key=baseline.key.name, words=f"not compared with {_name(baseline)}: {doubts(validity)}", short="not compared: invalid"
        )
    free = len(now.contention_free) >= MIN_BLOCKS and all(len(run.contention_free) >= MIN_BLOCKS for run in baseline.runs)
    rates = now.contention_free if free else now.rates
    found = rate_change(rates, [run.contention_free if free else run.rates for run in baseline.runs], live)
    excused, contention = _contention(now, baseline.runs, free)
    doubt = doubts(validity)
    decided: BaselineVerdict = rate_verdict(found, excused) if found and not doubt else "undecided"
    return BaselineComparison(
        key=baseline.key.name,
        words=visible(_words(now, baseline, found, decided, doubt or contention, free, live)),
        short=_short(found, decided),
        verdict=decided,
        change=found,
        rate=baseline.rate,
        unit=baseline.unit,
        runs=len(baseline.runs),
        since=min(run.date for run in baseline.runs),
        until=max(run.date for run in baseline.runs),
        clock="contention_free" if free else "wall",
        blocks=len(rates),
        live=live,
    )


Unequal = list[tuple[str, str]]
"""The parts that differ: the value of this run, and the value of the baseline."""


def nearest_baseline(key: BaselineKey, knobs: Knobs, known: Iterable[Baseline]) -> tuple[Baseline, Unequal] | None:
    """The baseline of the same scenario that differs in the fewest parts (of several: the newest), and these parts. Without a differing part,
    the comparison is possible."""
    newest_first = sorted(known, key=lambda one: one.runs[-1].date, reverse=True)
    alike = [(one, _unequal(key, knobs, one)) for one in newest_first if one.key.scenario == key.scenario]
    return min(alike, key=lambda one: len(one[1]), default=None)


def unlike(key: BaselineKey, other: Baseline, parts: Unequal) -> BaselineComparison:
    """The reason why there is no comparison. `other`: the nearest baseline to `key`; it differs in `parts`."""
    here, there = (", ".join(dict.fromkeys(part[side] for part in parts)) for side in (0, 1))
    rate = units.quantity(other.rate, other.unit)
    words = f"no baseline for {here}; the nearest baseline is for {there}, from {other.runs[-1].date[:10]}: {rate}"
    return BaselineComparison(key=key.name, words=visible(words), short=visible(f"no baseline for {here}"))


def _unequal(key: BaselineKey, knobs: Knobs, other: Baseline) -> Unequal:
    """The differing parts: hardware, software, then knobs. A knob that exists on one side only was added later and does not count."""
    theirs = other.key.parts()
    parts = [(part, theirs[name]) for name, part in key.parts().items() if part != theirs[name]]
    changed = {name: value for name, value in knobs.items() if name in other.knobs and other.knobs[name] != value}
    return parts + [(_knob(name, value), _knob(name, other.knobs[name])) for name, value in changed.items()]


def _knob(name: str, value: Value) -> str:
    return f"{name}={show(value)}"


def _contention(now: BaselineRun, kept: Sequence[BaselineRun], free: bool) -> tuple[float, str]:
    """The additional load during this run compared with the kept runs, if the difference matters; and a description in words.

    Other programs slow a run down even if no task waits: through the other hyperthread of a core, or through memory bandwidth. If their
    load is not known, the share of waiting is used instead. Contention-free time does not contain the wait of the training thread.
    """
    load = ("others_ratio", OTHERS_DIFFER, "other programs used {} of the CPUs")
    waiting = ("waiting_ratio", WAITING_DIFFERS, "some task waited for a CPU {} of the time")
    queue = ("run_queue_ratio", RUN_QUEUE_DIFFERS, "the training thread waited for a CPU {} of the time")
    known = now.others_ratio is not None and any(run.others_ratio is not None for run in kept)
    found = [(0.0, "")]
    for name, least, words in (load if known else waiting, *(() if free else (queue,))):
        mine = getattr(now, name)
        theirs = [value for run in kept if (value := getattr(run, name)) is not None]
        usual = statistics.fmean(theirs) if theirs else 0.0
        if mine is not None and theirs and abs(mine - usual) >= least:
            here, there = (units.percent(share).strip() for share in (mine, usual))
            found.append((mine - usual, f"contention: {words.format(here)} ({there} in the baseline)"))
    return max(found, key=lambda one: abs(one[0]))


def _words(
    now: BaselineRun, baseline: Baseline, found: RateChange | None, decided: BaselineVerdict, contention: str, free: bool, live: bool
) -> str:
    name = _name(baseline)
    delayed = free and any((run.run_queue_ratio or 0.0) >= WORTH_REPORTING for run in (now, *baseline.runs))
    so_far = (", without run-queue delay" if delayed else "") + (", so far" if live else "")
    if found is None:
        return f"no verdict against {name}: both runs need {MIN_BLOCKS} blocks of steady steps"
    if decided == "slower" or decided == "faster":
        low, high = sorted((abs(found.low), abs(found.high)))
        text = f"{abs(found.estimate) * 100:.1f} % [{low * 100:.1f}, {high * 100:.1f}] {decided} than {name}{so_far}, more than the noise"
        more = [_where(now, baseline.runs), "" if len(baseline.runs) >= RUNS_FOR_SPREAD else FEW_RUNS, contention]
        return "; ".join(part for part in (text, *more) if part)
    figure = f"{found.estimate * 100:+.1f} % [{found.low * 100:+.1f}, {found.high * 100:+.1f}]"
    if decided == "same":
        return f"the same as {name}{so_far}, within 5 %: {figure}"
    return f"{figure} against {name}{so_far}: undecided, {contention or 'the difference is within the noise'}"


def _name(baseline: Baseline) -> str:
    dates = sorted({run.date[:10] for run in baseline.runs})
    count = f"{len(baseline.runs)} runs, " if len(baseline.runs) > 1 else ""
    until = f" to {dates[-1]}" if len(dates) > 1 else ""
    return f"the baseline of {count}{dates[0]}{until} ({units.quantity(baseline.rate, baseline.unit)})"


def _where(now: BaselineRun, kept: Sequence[BaselineRun]) -> str:
    """The phase of a step with the largest change of time."""
    timed = [run for run in kept if run.step_time_s and run.phases_ratio]
    if not timed or not now.step_time_s or not now.phases_ratio:
        return ""
    new = {name: share * now.step_time_s for name, share in now.phases_ratio.items()}
    old = {name: statistics.fmean(run.phases_ratio.get(name, 0.0) * (run.step_time_s or 0.0) for run in timed) for name in new}
    most = max(new, key=lambda name: abs(new[name] - old[name]))
    before, after = (units.duration(seconds[most]).strip() for seconds in (old, new))
    return f"largest change in {most}: {before} -> {after} per step"


def _short(found: RateChange | None, decided: BaselineVerdict) -> str:
    if found is None:
        return "baseline: too few steps"
    if decided == "slower" or decided == "faster":
        return f"{found.estimate * 100:+.0f} % vs baseline"
    return f"{found.estimate * 100:+.1f} % vs baseline: {'same' if decided == 'same' else 'undecided'}"
