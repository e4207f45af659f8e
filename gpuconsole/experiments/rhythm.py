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
"""Largest probability that noise alone has a wave like the one found. The noise is not exactly as
assumed, so false names are more frequent than this: `benchmarks.trial_statistics` counts them."""
MIN_AMPLITUDE = 0.01
"""A smaller rhythm is not named: it changes the rate by less than 2 % from its slowest to its
fastest moment, as MINIMUM_EFFECT."""
MIN_CYCLES = 3.0
"""A rhythm has come back twice: the blocks of the trial hold this many of its periods."""
MIN_CYCLE_BLOCKS = 1.25
"""The shortest period, in mean distances between blocks. Shorter waves are averaged out in each
block."""
PER_RESOLUTION = 3
"""Frequencies tried per 1 / duration of the trial."""
MIN_BLOCKS = 10
FITTED = 3
"""Numbers that the fit takes from the blocks, beside the level of each side: the trend, and two for
the wave."""
MAX_CORRELATED = 0.9


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
    return {"contention_free": [], "wall": []} if contention_free else {"wall": []}


def add_block(
    on_clock: OnClock, arm: int, steps: Sequence[Step], work: Work = work_of_step
) -> None:
    """Add a block between its first and its last counted step; `Step.t` is the end of a step."""
    for clock, blocks in on_clock.items():
        log_rate = math.log(rate(steps, clock == "contention_free", work))
        blocks.append(MeasuredBlock(arm, steps[0].t - steps[0].wall_s, steps[-1].t, log_rate))


def first_rhythm(on_clock: OnClock) -> Rhythm | None:
    """The rhythm on the first clock that shows one. A rhythm of other processes shows best in the
    difference of the clocks, which is what those processes take: the noise of the work itself is
    not in it. This rhythm is one on the wall clock."""
    for clock, blocks in on_clock.items():
        if (rhythm := rhythm_of(blocks)) is not None:
            return msgspec.structs.replace(rhythm, clock=clock)
    free = on_clock.get("contention_free", [])
    waits = [
        block._replace(log_rate=block.log_rate - other.log_rate)
        for block, other in zip(on_clock["wall"], free, strict=False)
    ]
    return rhythm_of(waits)


def _mean_wave(start: float, end: float, frequency: float) -> complex:
    """The mean of exp(2 pi i `frequency` t) between two times; the times and the inverse of the
    frequency have the same unit."""
    turn = 2j * math.pi * frequency
    return (cmath.exp(turn * end) - cmath.exp(turn * start)) / (turn * (end - start))


def rhythm_of(blocks: Sequence[MeasuredBlock]) -> Rhythm | None:
    """The rhythm that `blocks` show on both sides alike; None if noise, a drift or an effect
    explain them as well, or where the blocks are few or not in order of time.

    A least-squares periodogram (Lomb 1976, Scargle 1982) of the log rates: a wave is averaged over
    each block, the level of each side and a trend are fitted with it. Noise is correlated from one
    block to the next (an AR(1) process, as in REDFIT, Schulz and Mudelsee 2002): the correlation is
    estimated as if there were no wave, and both are filtered with it. The probability of a wave by
    chance is multiplied by the number of independent frequencies.
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
    base = _orthonormal([[float(block.arm == arm) for block in blocks] for arm in arms] + [middles])
    correlation = _correlation(_without(values, base))
    filtered = [_filtered(column, correlation) for column in base]
    base = _orthonormal(filtered)
    target = _without(_filtered(values, correlation), base)
    total = _dot(target, target)
    if total <= 0:
        return None

    def wave(frequency: float) -> tuple[float, float]:
        """The explained share of the variation, and the amplitude, of the best wave with this
        frequency."""
        means = [
            _mean_wave(block.start_s - begin, block.end_s - begin, frequency) for block in blocks
        ]
        cosine, sine = (
            _filtered(column, correlation)
            for column in ([mean.real for mean in means], [mean.imag for mean in means])
        )
        in_base = [(_dot(cosine, column), _dot(sine, column)) for column in base]
        cc = _dot(cosine, cosine) - sum(of_cosine**2 for of_cosine, _ in in_base)
        ss = _dot(sine, sine) - sum(of_sine**2 for _, of_sine in in_base)
        cs = _dot(cosine, sine) - sum(of_cosine * of_sine for of_cosine, of_sine in in_base)
        c, s = _dot(cosine, target), _dot(sine, target)
        determinant = cc * ss - cs * cs
        if determinant <= 1e-9 * (cc + ss) ** 2:
            return 0.0, 0.0
        of_cosine, of_sine = (ss * c - cs * s) / determinant, (cc * s - cs * c) / determinant
        return (of_cosine * c + of_sine * s) / total, math.hypot(of_cosine, of_sine)

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
    by_chance = (
        span_s * (highest - lowest) * max(0.0, 1 - explained) ** ((n - len(arms) - FITTED) / 2)
    )
    if by_chance >= FALSE_ALARM or amplitude < MIN_AMPLITUDE:
        return None
    return Rhythm(1 / best, amplitude)


def _correlation(residuals: Sequence[float]) -> float:
    """The correlation from one residual to the next, 0 to MAX_CORRELATED. An estimate from few
    values is too small (Kendall 1954): see `statistics.estimate`."""
    squares = _dot(residuals, residuals)
    seen = (
        sum(value * after for value, after in pairwise(residuals)) / squares if squares > 0 else 0.0
    )
    return min(MAX_CORRELATED, max(0.0, seen + (1 + 4 * seen) / len(residuals)))


def _filtered(values: Sequence[float], correlation: float) -> list[float]:
    """`values` without what follows from the value before (Prais and Winsten 1954)."""
    return [
        values[0] * math.sqrt(1 - correlation**2),
        *(after - correlation * value for value, after in pairwise(values)),
    ]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return float(sum(map(operator.mul, left, right)))


def _without(values: Sequence[float], base: Sequence[Sequence[float]]) -> list[float]:
    """`values` without their part in the space of the orthonormal `base`."""
    rest = list(values)
    for column in base:
        share = _dot(rest, column)
        rest = [value - share * of_column for value, of_column in zip(rest, column, strict=True)]
    return rest


def _orthonormal(columns: Sequence[Sequence[float]]) -> list[list[float]]:
    """An orthonormal base of the space of `columns` (Gram and Schmidt)."""
    base: list[list[float]] = []
    for column in columns:
        rest = _without(column, base)
        length = math.sqrt(_dot(rest, rest))
        if length > 1e-9 * (1 + math.sqrt(_dot(column, column))):
            base.append([value / length for value in rest])
    return base
