"""A run held against its baseline: the verdict, and all of it in words."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from gpuconsole.model.baseline import Baseline, BaselineComparison, BaselineKey, BaselineRun, BaselineVerdict, RateChange
from gpuconsole.model.text import visible
from gpuconsole.tuning.regression import MIN_BLOCKS, RUNS_FOR_SPREAD, change, verdict

RUN_QUEUE_DIFFERS = 0.15
"""The threshold of host.cpu_contention: below it verdicts on contention-free time stay right."""
WAITING_DIFFERS = 0.20
"""Pressure on the cores that counts as contention in that rule's signals (DIAGNOSIS.md, T15)."""
FEW_RUNS = f"how much whole runs differ is not known before {RUNS_FOR_SPREAD} are kept"


def compare(now: BaselineRun, baseline: Baseline, live: bool = False) -> BaselineComparison:
    """`now` beside the runs kept under its key."""
    free = len(now.contention_free) >= MIN_BLOCKS and all(len(run.contention_free) >= MIN_BLOCKS for run in baseline.runs)
    rates = now.contention_free if free else now.rates
    found = change(rates, [run.contention_free if free else run.rates for run in baseline.runs], live)
    excused, contention = _contention(now, baseline.runs)
    decided: BaselineVerdict = verdict(found, excused) if found else "undecided"
    return BaselineComparison(
        key=baseline.key.name,
        words=visible(_words(now, baseline, found, decided, contention, live)),
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


def nothing_alike(key: BaselineKey, others: Iterable[Baseline]) -> BaselineComparison | None:
    """What there is instead of a baseline for `key`: the one with the fewest parts that differ, and those parts by name."""
    own = key.parts()
    found = [(_unequal(own, other.key.parts()), other) for other in others if other.key.scenario == key.scenario]
    if not found:
        return None
    fewest = min(len(names) for names, _ in found)
    names, other = max((one for one in found if len(one[0]) == fewest), key=lambda one: one[1].runs[-1].date)
    theirs = other.key.parts()
    here, there = (", ".join(dict.fromkeys(parts[name] for name in names)) for parts in (own, theirs))
    words = f"no baseline for {here}; there is one for {there} from {other.runs[-1].date[:10]}: {_rate(other.rate)} {other.unit}"
    return BaselineComparison(key=key.name, words=visible(words), short=visible(f"no baseline for {here}"))


def _unequal(own: dict[str, str], theirs: dict[str, str]) -> list[str]:
    return [name for name, value in own.items() if theirs[name] != value]


def _contention(now: BaselineRun, kept: Sequence[BaselineRun]) -> tuple[float, str]:
    """How much more of its time the run waited for cores than the kept ones did, where that is enough to matter; and in words."""
    found = [(0.0, "")]
    for name, least, what in (
        ("run_queue_ratio", RUN_QUEUE_DIFFERS, "the training thread waited for a core"),
        ("waiting_ratio", WAITING_DIFFERS, "something waited for a core"),
    ):
        mine = getattr(now, name)
        theirs = [value for run in kept if (value := getattr(run, name)) is not None]
        if mine is None or not theirs:
            continue
        usual = statistics.fmean(theirs)
        if abs(mine - usual) >= least:
            found.append((mine - usual, f"contention: {what} {mine:.0%} of the time, in the baseline {usual:.0%}"))
    return max(found, key=lambda one: abs(one[0]))


def _words(now: BaselineRun, baseline: Baseline, found: RateChange | None, decided: BaselineVerdict, contention: str, live: bool) -> str:
    name = _name(baseline)
    if found is None:
        return f"{name}: no verdict before there are {MIN_BLOCKS} blocks of steady steps, in the run and in the baseline"
    so_far = " so far" if live else ""
    if decided == "slower" or decided == "faster":
        low, high = sorted((abs(found.low), abs(found.high)))
        text = f"{abs(found.estimate) * 100:.1f} % [{low * 100:.1f}, {high * 100:.1f}] {decided} than {name}{so_far}: beyond its noise"
        more = [_where(now, baseline.runs), "" if len(baseline.runs) >= RUNS_FOR_SPREAD else FEW_RUNS, contention]
        return "; ".join(part for part in (text, *more) if part)
    figure = f"{found.estimate * 100:+.1f} % [{found.low * 100:+.1f}, {found.high * 100:+.1f}]"
    if decided == "same":
        return f"the same as {name}{so_far}, within 5 %: {figure}"
    return f"{figure} against {name}{so_far}: undecided, {contention or 'within its noise'}"


def _name(baseline: Baseline) -> str:
    dates = sorted({run.date[:10] for run in baseline.runs})
    count = f"{len(baseline.runs)} runs, " if len(baseline.runs) > 1 else ""
    until = f" to {dates[-1]}" if len(dates) > 1 else ""
    return f"the baseline of {count}{dates[0]}{until} ({_rate(baseline.rate)} {baseline.unit})"


def _where(now: BaselineRun, kept: Sequence[BaselineRun]) -> str:
    """The phase of a step that has changed most."""
    timed = [run for run in kept if run.step_time_s and run.phases_ratio]
    if not timed or not now.step_time_s or not now.phases_ratio:
        return ""
    new = {name: share * now.step_time_s for name, share in now.phases_ratio.items()}
    old = {name: statistics.fmean(run.phases_ratio.get(name, 0.0) * (run.step_time_s or 0.0) for run in timed) for name in new}
    most = max(new, key=lambda name: abs(new[name] - old[name]))
    return f"most of it in {most}: {old[most] * 1e3:.3g} -> {new[most] * 1e3:.3g} ms a step"


def _short(found: RateChange | None, decided: BaselineVerdict) -> str:
    if found is None:
        return "baseline: too few steps"
    if decided == "slower" or decided == "faster":
        return f"{found.estimate * 100:+.0f} % vs baseline"
    return f"{found.estimate * 100:+.1f} % vs baseline: {'same' if decided == 'same' else 'undecided'}"


def _rate(value: float) -> str:
    """`18 240`, or three digits of what is small."""
    return f"{value:,.0f}".replace(",", " ") if value >= 999.5 else f"{value:.3g}"
