"""Judges a restart of a model server by the recorded hours before and after, at the same load.

The clients decide how much comes, and less comes at night. So each minute after the restart is compared with the minutes before it that had about the same
requests per second and the same length of prompts and answers; a minute without such a partner does not count. Minutes that follow each other are alike, so the interval comes from
stretches of half an hour, drawn again and again from both sides (bootstrap of blocks: Künsch 1989), with Student's quantile for so few; the intervals of all figures hold
together, and each is widened by what two equal starts differ by. Nobody has drawn lots for
which hours had which setting: what else changed at that moment is part of the difference.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuconsole.experiments.statistics import ALPHA, BETWEEN, MINIMUM_EFFECT, NORMAL_975, student_quantile
from gpuconsole.experiments.traffic import DECIDES, MOST_COST, PRIMARY, WORDS
from gpuconsole.model.experiments import Speedup, Verdict
from gpuconsole.model.restart import RestartEffect
from gpuconsole.session.history import WINDOW_S, History, Series

UNIT_S, STRETCH_S = 60.0, 1800.0
SETTLED_S = 120.0
"""Minutes right after a restart fill the caches, and do not count."""
MOST_S = 24 * 3600.0
LOAD_STEP, LENGTH_STEP = math.log(1.25), math.log(1.5)
"""Minutes are alike whose requests per second, and whose tokens of a request, are in the same step of these factors."""
LEAST_STRETCHES = 4
LEAST_SHARE = 0.5
"""So much of the time after must have a partner before."""
DRAWS = 400
LEAST_RATE = 1 / 60
NO_RESTART = "no restart of the server is in the recording"


class Minute(NamedTuple):
    """A minute of a server: the load that it belongs to, and its figures as logarithms of a speed: more is better."""

    t: float
    load: tuple[int, ...]
    arrivals: float
    figures: Mapping[str, float]


def judge_restart(history: History, at: float | None = None) -> RestartEffect:
    """The effect of the last restart, or of the last one before `at`. Raises ValueError with one line where there is none."""
    restarts = [
        happening.t for happening in history.happenings if happening.name == "restart" and (at is None or happening.t <= at + UNIT_S)
    ]
    if not restarts:
        raise ValueError(NO_RESTART)
    t = restarts[-1]
    others = [
        happening.t for happening in history.happenings if happening.name in ("restart", "setting") and abs(happening.t - t) > SETTLED_S
    ]
    begun = max([t - MOST_S, *(other for other in others if other < t)])
    ended = min([t + MOST_S, *(other for other in others if other > t)])
    before = _minutes(history, begun, t - UNIT_S)
    after = _minutes(history, t + SETTLED_S, ended)
    effect = RestartEffect(
        t,
        [happening.words for happening in history.happenings if happening.name == "setting" and abs(happening.t - t) <= SETTLED_S],
        UNIT_S * len(before),
        UNIT_S * len(after),
        _middle(before),
        _middle(after),
    )
    alike = {minute.load for minute in before} & {minute.load for minute in after}
    matched = [[minute for minute in side if minute.load in alike] for side in (before, after)]
    effect.compared_ratio = len(matched[1]) / len(after) if after else 0.0
    stretches = [_stretches(side) for side in matched]
    fewest = min(map(len, stretches))
    if not before or not after:
        effect.reason = f"no minute with traffic was recorded {'before' if not before else 'after'} the restart"
    elif effect.compared_ratio < LEAST_SHARE:
        effect.reason = "the load differs: " + " and ".join(
            f"{low:.2g} to {high:.2g} requests/s {word}"
            for (low, high), word in ((effect.load_before, "before"), (effect.load_after, "after"))
        )
    elif fewest < LEAST_STRETCHES:
        effect.reason = f"{fewest * STRETCH_S / 60:.0f} minutes with the same load on a side are too few: {LEAST_STRETCHES * STRETCH_S / 60:.0f} are needed"
    else:
        for name in WORDS:
            if (interval := _interval(stretches[0], stretches[1], name)) is not None:
                effect.effects[name] = interval
        effect.verdict, effect.reason = _verdict(effect.effects)
    return effect


def _minutes(history: History, begun: float, ended: float) -> list[Minute]:
    """The minutes between two times in which requests came and tokens went out."""
    running, waiting = history.mean("requests_running"), history.mean("requests_waiting")
    ended_s, made = history.rate("requests"), history.rate("generation_tokens")
    prompts = history.per("request_prompt_tokens_sum", "request_prompt_tokens_count") or history.per("prompt_tokens", "requests")
    answers = history.per("request_output_tokens_sum", "request_output_tokens_count") or history.per("generation_tokens", "requests")
    latencies = {name: history.per(f"{name}_sum", f"{name}_count") for name in ("ttft_s", "itl_s")}
    windows = int(UNIT_S / WINDOW_S)
    minutes = []
    for number in range(math.ceil(begun / UNIT_S), math.floor(ended / UNIT_S)):
        inside_of = range(number * windows, (number + 1) * windows)
        means = {name: _mean(series, inside_of) for name, series in (("running", running), ("ended", ended_s), ("made", made))}
        run, left, tokens = means["running"], means["ended"], means["made"]
        if run is None or left is None or tokens is None or left < LEAST_RATE or tokens <= 0:
            continue
        inside = run + (_mean(waiting, inside_of) or 0.0)
        if inside <= 0:
            continue
        figures = {"tokens_per_s": math.log(tokens), DECIDES: math.log(tokens / inside)}
        figures |= {name: -math.log(value) for name, series in latencies.items() if (value := _mean(series, inside_of))}
        lengths = [_mean(series, inside_of) for series in (prompts, answers)]
        load = (round(math.log(left) / LOAD_STEP), *(round(math.log(length) / LENGTH_STEP) if length else 0 for length in lengths))
        minutes.append(Minute(number * UNIT_S, load, left, figures))
    return minutes


def _mean(series: Series, windows: range) -> float | None:
    values = [series[window] for window in windows if window in series]
    return statistics.fmean(values) if values else None


def _middle(minutes: Sequence[Minute]) -> tuple[float, float]:
    rates = sorted(minute.arrivals for minute in minutes)
    return (rates[len(rates) // 4], rates[(3 * len(rates)) // 4]) if rates else (0.0, 0.0)


def _stretches(minutes: Sequence[Minute]) -> list[list[Minute]]:
    """The minutes of each half hour."""
    found: dict[int, list[Minute]] = {}
    for minute in minutes:
        found.setdefault(int(minute.t // STRETCH_S), []).append(minute)
    return list(found.values())


def _interval(before: Sequence[Sequence[Minute]], after: Sequence[Sequence[Minute]], figure: str) -> Speedup | None:
    """The ratio of a figure at the same load, after over before, with its interval; None where a side does not have it."""
    middle = _difference(before, after, figure)
    if middle is None:
        return None
    chance = random.Random(0)
    draws = [_difference(chance.choices(before, k=len(before)), chance.choices(after, k=len(after)), figure) for _ in range(DRAWS)]
    spread = statistics.stdev([draw for draw in draws if draw is not None])
    quantile = student_quantile(min(len(before), len(after)) - 1, ALPHA / len(WORDS))
    half = math.hypot(quantile * spread, NORMAL_975 * BETWEEN["restarts ABBA"])
    return Speedup(*(math.exp(min(20.0, max(-20.0, value))) for value in (middle, middle - half, middle + half)))


def _difference(before: Sequence[Sequence[Minute]], after: Sequence[Sequence[Minute]], figure: str) -> float | None:
    """The mean difference over the loads of both sides, each weighted by its time after."""
    sums: list[dict[tuple[int, ...], list[float]]] = []
    for side in (before, after):
        of_load: dict[tuple[int, ...], list[float]] = {}
        for stretch in side:
            for minute in stretch:
                if figure in minute.figures:
                    of_load.setdefault(minute.load, []).append(minute.figures[figure])
        sums.append(of_load)
    shared = sums[0].keys() & sums[1].keys()
    weight = sum(len(sums[1][load]) for load in shared)
    if not weight:
        return None
    return sum(len(sums[1][load]) * (statistics.fmean(sums[1][load]) - statistics.fmean(sums[0][load])) for load in shared) / weight


def _verdict(effects: Mapping[str, Speedup]) -> tuple[Verdict, str]:
    logs = {name: (math.log(effect.estimate), math.log(effect.low), math.log(effect.high)) for name, effect in effects.items()}
    better = [name for name, (_, low, _) in logs.items() if low > MINIMUM_EFFECT]
    worse = [name for name, (_, _, high) in logs.items() if high < -MINIMUM_EFFECT]
    dearer = [name for name, (mean, _, _) in logs.items() if mean < -MOST_COST]
    if better and (worse or dearer):
        return "undecided", f"a trade: {_listed(better, effects)}, but {_listed(worse or dearer, effects)}"
    if set(worse) & set(PRIMARY):
        return "worse", ""
    if set(better) & set(PRIMARY):
        return "win", ""
    if all(name in logs and logs[name][2] < MINIMUM_EFFECT for name in PRIMARY):
        return "no_gain", ""
    return "undecided", "the hours differ among themselves more than the restart changes"


def _listed(names: Sequence[str], effects: Mapping[str, Speedup]) -> str:
    return ", ".join(f"{WORDS[name]} {effects[name].estimate:.2f}x as good" for name in names)
