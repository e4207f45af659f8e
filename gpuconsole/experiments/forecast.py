"""How long a trial will take and what it can resolve, before it starts. Pure: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gpuconsole.experiments.block_order import MEAN_STRETCH
from gpuconsole.experiments.statistics import BETWEEN, CHANGED, MIN_PAIRS, pairs_needed, plans, rate, resolution
from gpuconsole.experiments.trial import MAX_PAIRS, TrialLimits
from gpuconsole.model import units
from gpuconsole.model.experiments import Forecast
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes, show
from gpuconsole.model.run import Run, Step
from gpuconsole.model.serving import settle_s

NOISE_BLOCKS = 8
"""Number of blocks of the run that show its noise. They take 16 s, a small part of a trial that starts a server."""
FIRST_STEPS_S = 1.0
"""Seconds from a ready server to the first report of the load generator, and to the pause after it."""


def forecast_restart(
    run: Run, steps: Sequence[Step], changes: Knobs, predicted: Interval | None, limits: TrialLimits, start_s: float
) -> Forecast:
    """The forecast of a trial of `changes` with a second model server. `steps`: the steady steps of the run, as a sample of its noise.
    `start_s`: seconds that the present server took to start; the second server takes as long.

    Each block has the settling time and the counted time. The number of pairs is the number that the noise requires, at most the number that
    fits into the time limit. The noise comes from successive blocks of the run, like the null pairs of a trial.
    """
    plan = plans(run.knobs, changes, run.summary.phases_ratio or None)[CHANGED]
    step_s = sum(step.wall_s for step in steps) / len(steps) if steps else 0.0
    e2e = run.summary.e2e_s
    pair_s = 2 * (settle_s(e2e.p50 if e2e else None) + MEAN_STRETCH * plan.least_s(step_s) + step_s)
    most = max(MIN_PAIRS, min(MAX_PAIRS, math.ceil(limits.serving_cap_s / pair_s)))
    nulls = null_log_ratios(steps, plan.min_s)
    between = BETWEEN["two workers ABBA"]
    pairs = pairs_needed(nulls, between, predicted.middle if predicted else None, most)
    return Forecast(start_s + FIRST_STEPS_S + pairs * pair_s, resolution(nulls, most, between))


def noise_s(run: Run, changes: Knobs) -> float:
    """Seconds of steps that `forecast_restart` needs to know the noise of the run."""
    return NOISE_BLOCKS * plans(run.knobs, changes)[CHANGED].min_s


def null_log_ratios(steps: Sequence[Step], block_s: float) -> list[float]:
    """Log ratios of the rates of successive blocks of `block_s` seconds: the run compared with itself."""
    rates, block, seconds = list[float](), list[Step](), 0.0
    for step in steps:
        block.append(step)
        seconds += step.wall_s
        if seconds >= block_s:
            rates.append(rate(block, False))
            block, seconds = [], 0.0
    return [math.log(later / earlier) for earlier, later in pairwise(positive for positive in rates if positive > 0)]


def forecast_line(forecast: Forecast) -> str:
    """What a trial with a second model server will take, in one or two sentences."""
    sentence = f"The trial starts a second model server: {units.about(forecast.seconds)}."
    if forecast.resolution_ratio is not None:
        sentence += f" It can resolve a change of {units.precise_percent(forecast.resolution_ratio)} at best."
    return sentence


def refusal(changes: Knobs, forecast: Forecast, expected: Interval) -> str:
    """Why a trial is not started, and how to start it anyway."""
    assert forecast.resolution_ratio is not None
    takes = f"it would take {units.about(forecast.seconds)} and resolve {units.precise_percent(forecast.resolution_ratio)} at best"
    gain = units.interval(expected.low, expected.high)
    force = " ".join(f"--try {name}={show(value)}" for name, value in changes.items())
    return f"{describe_changes(changes)}: no trial: {takes}, and the predicted speedup is {gain}; to try it anyway: {force}, or k on the screen"
