"""The rhythm of a machine, as the blocks of a trial or a sweep show it: a disturbance that comes
and goes with a period."""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from gpuconsole.experiments.statistics import rate, work_of_step
from gpuconsole.model.experiments import Clock, Rhythm
from gpuconsole.model.run import Step
from gpuconsole.session.figures.rate import Work

FALSE_ALARM = 0.001
"""The largest probability that noise alone shows a wave as strong as the rhythm. Real noise differs
from the assumed noise, so false alarms are more frequent: `benchmarks.trial_statistics` counts
them."""
MIN_AMPLITUDE = 0.01
"""A smaller rhythm is not reported: it changes the rate by less than 2 % (MINIMUM_EFFECT) from the
slowest to the fastest moment."""
MIN_CYCLES = 3.0
"""The blocks of a trial last for at least this many periods of a rhythm: it has come back twice."""
MIN_CYCLE_BLOCKS = 1.25
"""The shortest period, in mean distances between blocks. Shorter waves are averaged out in each
block."""
PER_RESOLUTION = 3
"""Frequencies tried per 1 / duration of the trial."""
MIN_BLOCKS = 10
FITTED = 3
"""The number of parameters that are fitted to the blocks in addition to the level of each arm: one
for the trend, and two for the wave."""
MAX_CORRELATED = 0.9
"""The largest correlation of the noise from one block to the next."""

OnClock = dict[Clock, list["MeasuredBlock"]]
"""The blocks of a trial or a sweep with their rates on each clock, the more sensitive clock first:
the contention-free clock leaves out most of what a neighbour takes, and the user sees the wall
clock."""


class MeasuredBlock(NamedTuple):
    """A block of a trial or a sweep: its arm, when its counted steps began and ended (seconds of
    any clock), and its log rate."""

    arm: int
    start_s: float
    end_s: float
    log_rate: float


def no_blocks(contention_free: bool) -> OnClock:
    """Return the clocks of a trial or a sweep, each without blocks yet."""
    return {"contention_free": [], "wall": []} if contention_free else {"wall": []}


def add_block(
    on_clock: OnClock, arm: int, steps: Sequence[Step], work: Work = work_of_step
) -> None:
    """Add a block between its first and its last counted step; `Step.t` is the end of a step."""
    for clock, blocks in on_clock.items():
        log_rate = math.log(rate(steps, clock == "contention_free", work))
        blocks.append(MeasuredBlock(arm, steps[0].t - steps[0].wall_s, steps[-1].t, log_rate))


def first_rhythm(on_clock: OnClock) -> Rhythm | None:
    """Return the rhythm on the first clock that shows a rhythm. If no clock shows one, look for a
    rhythm in the difference of the clocks: this difference is the time that other processes take,
    and it does not contain the noise of the work itself. A rhythm of the difference counts as
    one on the wall clock."""
    for clock, blocks in on_clock.items():
        if (rhythm := rhythm_of(blocks)) is not None:
            return msgspec.structs.replace(rhythm, clock=clock)
    free = on_clock.get("contention_free", [])
    differences = [
        wall_block._replace(log_rate=wall_block.log_rate - free_block.log_rate)
        for wall_block, free_block in zip(on_clock["wall"], free, strict=False)
    ]
    return rhythm_of(differences)


def _mean_wave(start: float, end: float, frequency: float) -> complex:
    """Return the mean of exp(2 pi i `frequency` t) between two times. The times and the inverse of
    the frequency have the same unit."""
    turn = 2j * math.pi * frequency
    return (cmath.exp(turn * end) - cmath.exp(turn * start)) / (turn * (end - start))


def rhythm_of(blocks: Sequence[MeasuredBlock]) -> Rhythm | None:
    """Return the rhythm that `blocks` show in all arms alike; None if noise, a drift or an effect
    explain the blocks as well, or where the blocks are few or not in order of time.

    The method is a least-squares periodogram (Lomb 1976, Scargle 1982) of the log rates. The fit
    averages a wave over each block, and fits the level of each arm and a trend together with the
    wave. The noise is correlated from one block to the next (an AR(1) process, as in REDFIT, Schulz
    and Mudelsee 2002): the correlation is estimated as if there were no wave, and then filtered out
    of the log rates and of the fitted columns. The probability of a wave by chance is multiplied by
    the number of independent frequencies.
    """
    n = len(blocks)
    times = [time for block in blocks for time in (block.start_s, block.end_s)]
    if (
        n < MIN_BLOCKS
        or any(block.end_s <= block.start_s for block in blocks)
        or times != sorted(times)
    ):
        return None
    begin = blocks[0].start_s
    span_s = blocks[-1].end_s - begin
    lowest, highest = MIN_CYCLES / span_s, n / (MIN_CYCLE_BLOCKS * span_s)
    values = [block.log_rate for block in blocks]
    middles = [(block.start_s + block.end_s) / 2 - begin for block in blocks]
    arms = sorted({block.arm for block in blocks})
    basis = _orthonormal(
        [[float(block.arm == arm) for block in blocks] for arm in arms] + [middles]
    )
    correlation = _correlation(_without(values, basis))
    filtered = [_filtered(column, correlation) for column in basis]
    basis = _orthonormal(filtered)
    target = _without(_filtered(values, correlation), basis)
    total = _dot(target, target)
    if total <= 0:
        return None

    def wave(frequency: float) -> tuple[float, float]:
        """Fit the wave with this frequency: return the share of the variation that the wave
        explains, and its amplitude."""
        means = [
            _mean_wave(block.start_s - begin, block.end_s - begin, frequency) for block in blocks
        ]
        cosine, sine = (
            _filtered(column, correlation)
            for column in ([mean.real for mean in means], [mean.imag for mean in means])
        )
        in_basis = [(_dot(cosine, column), _dot(sine, column)) for column in basis]
        cc = _dot(cosine, cosine) - sum(of_cosine**2 for of_cosine, _ in in_basis)
        ss = _dot(sine, sine) - sum(of_sine**2 for _, of_sine in in_basis)
        cs = _dot(cosine, sine) - sum(of_cosine * of_sine for of_cosine, of_sine in in_basis)
        c, s = _dot(cosine, target), _dot(sine, target)
        determinant = cc * ss - cs * cs
        if determinant <= 1e-9 * (cc + ss) ** 2:
            return 0.0, 0.0
        cosine_factor = (ss * c - cs * s) / determinant
        sine_factor = (cc * s - cs * c) / determinant
        share = (cosine_factor * c + sine_factor * s) / total
        return share, math.hypot(cosine_factor, sine_factor)

    step = 1 / (PER_RESOLUTION * span_s)
    count = int((highest - lowest) / step) + 1
    best = max(
        (lowest + index * step for index in range(count)), key=lambda frequency: wave(frequency)[0]
    )
    near = (best + step * offset / 10 for offset in range(-10, 11))
    best = max(
        (frequency for frequency in near if lowest <= frequency <= highest),
        key=lambda frequency: wave(frequency)[0],
    )
    explained, amplitude = wave(best)
    chance_probability = (
        span_s * (highest - lowest) * max(0.0, 1 - explained) ** ((n - len(arms) - FITTED) / 2)
    )
    if chance_probability >= FALSE_ALARM or amplitude < MIN_AMPLITUDE:
        return None
    return Rhythm(1 / best, amplitude)


def _correlation(residuals: Sequence[float]) -> float:
    """Return the correlation from one residual to the next, 0 to MAX_CORRELATED. An estimate from
    few values is too small, and is corrected (Kendall 1954): see `statistics.estimate`."""
    squares = _dot(residuals, residuals)
    products = sum(value * after for value, after in pairwise(residuals))
    estimate = products / squares if squares > 0 else 0.0
    return min(MAX_CORRELATED, max(0.0, estimate + (1 + 4 * estimate) / len(residuals)))


def _filtered(values: Sequence[float], correlation: float) -> list[float]:
    """Return `values`, each without the part that the previous value predicts (Prais and Winsten
    1954)."""
    return [
        values[0] * math.sqrt(1 - correlation**2),
        *(after - correlation * value for value, after in pairwise(values)),
    ]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return float(sum(map(operator.mul, left, right)))


def _without(values: Sequence[float], basis: Sequence[Sequence[float]]) -> list[float]:
    """Return `values` without their part in the space of the orthonormal `basis`."""
    rest = list(values)
    for column in basis:
        share = _dot(rest, column)
        rest = [value - share * of_column for value, of_column in zip(rest, column, strict=True)]
    return rest


def _orthonormal(columns: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return an orthonormal basis of the space of `columns` (Gram and Schmidt)."""
    basis: list[list[float]] = []
    for column in columns:
        rest = _without(column, basis)
        length = math.sqrt(_dot(rest, rest))
        if length > 1e-9 * (1 + math.sqrt(_dot(column, column))):
            basis.append([value / length for value in rest])
    return basis
