"""The order and the lengths of the blocks of a trial and of a sweep, and the order of the runs of a
gate: at random, and such that no rhythm of the machine looks like an effect."""

from __future__ import annotations

import cmath
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpuconsole.experiments.statistics import (
    BASELINE,
    CHANGED,
    MIN_PAIRS,
    half_width,
    other_variant,
)

MAX_STRETCH = 3.0
"""The longest block of a trial over the shortest. With equal lengths a rhythm stays in step with
the blocks."""
MEAN_STRETCH = 1 + (MAX_STRETCH - 1) / 3
"""The mean of `random_stretch`."""
PERIODS = tuple(1.5 * 1.06**n for n in range(41))
"""The periods of the rhythms that are kept from looking like an effect, in blocks of mean length:
1.5 to 15."""
NOISE = 0.1
"""Standard deviation of the noise of a block over the amplitude of the rhythm. Where the rhythm
moves a pair by less, it is no danger."""
TRIES = 30
"""Draws of the next pairs before the best of them is taken. About a sixth of the draws of the first
MIN_PAIRS pairs is good enough."""


class Block(NamedTuple):
    """A block to measure: its arm, and its length as a multiple of the shortest complete block."""

    arm: int
    stretch: float


Pair = tuple[Block, Block]


def order(seed: int) -> Iterator[Pair]:
    """The endless order of blocks in pairs, drawn at random: which arm comes first in a pair, and
    the length of each block.

    A fixed order (A B, B A) with equal lengths repeats every four blocks, and a disturbance with
    that period looks like an effect: 24 % false wins. Switchback experiments randomise for this
    reason (Bojinov, Simchi-Levi, Zhao 2023). But one in eight draws of four pairs repeats every two
    or four blocks too. So a draw is repeated, up to TRIES times, until no wave of PERIODS alone
    looks like an effect at any moment at which a verdict is possible (rerandomisation: Morgan and
    Rubin 2012). The condition is the same for both arms. `seed` fixes the whole order.
    """
    chance = random.Random(seed)
    exposure, count = Exposure(), MIN_PAIRS
    while True:
        tried: list[tuple[float, Exposure, list[Pair]]] = []
        for _ in range(TRIES):
            pairs = [_drawn(chance) for _ in range(count)]
            longer = exposure.after(pairs)
            tried.append((longer.danger, longer, pairs))
            if longer.danger < 1:
                break
        _, exposure, pairs = min(tried, key=lambda draw: draw[0])
        yield from pairs
        count = 1


def in_turn(count: int) -> list[int]:
    """The order of `count` pairs of runs of equal length, drawn at random: for each pair, the arm
    that comes first. Each arm is first in half of the pairs. For `action.yml` and `ci/gitlab.yml`.

    The draw is repeated as in `order`. Without lengths to draw, a rhythm of two or four runs stays
    in step with the runs, so pairs that are all alike and pairs that alternate are no random order.
    """
    tried: list[tuple[float, list[int]]] = []
    for _ in range(TRIES):
        more = random.choice((BASELINE, CHANGED))
        arms = [other_variant(more) if n % 2 else more for n in range(count)]
        firsts = random.sample(arms, count)
        runs = [
            (Block(arm, MEAN_STRETCH), Block(other_variant(arm), MEAN_STRETCH)) for arm in firsts
        ]
        danger = Exposure().after(runs).danger if count > 1 else 0.0
        tried.append((round(danger, 6), firsts))  # that of the mirrored order is the same
        if danger < 1:
            break
    return min(tried, key=lambda draw: draw[0])[1]


def random_stretch(chance: random.Random) -> float:
    """A length between 1 and MAX_STRETCH. Short blocks are drawn more often: a trial then takes
    less time than with equal chances."""
    return 1 + (MAX_STRETCH - 1) * chance.random() ** 2


def _drawn(chance: random.Random) -> Pair:
    first = chance.choice((BASELINE, CHANGED))
    return Block(first, random_stretch(chance)), Block(other_variant(first), random_stretch(chance))


class Exposure:
    """How much a rhythm can look like an effect in the pairs drawn so far.

    A wave of amplitude 1 and phase p, averaged over each block, changes the log ratio of pair n by
    the real part of z[n] exp(ip). `_sums` holds, for each of PERIODS, the sums of z, of the squares
    of abs(z), and of z squared.
    """

    def __init__(self) -> None:
        self._pairs, self._end = 0, 0.0
        self._sums = [(0j, 0.0, 0j)] * len(PERIODS)

    def after(self, pairs: Sequence[Pair]) -> Exposure:
        """The exposure with `pairs` added."""
        longer = Exposure()
        longer._pairs, longer._end = self._pairs + len(pairs), self._end
        spans = []
        for pair in pairs:
            ends = list(
                itertools.accumulate(
                    (block.stretch / MEAN_STRETCH for block in pair), initial=longer._end
                )
            )
            longer._end = ends[-1]
            spans.append((1 if pair[0].arm == CHANGED else -1, *ends))
        sums = []
        for period, (total, squares, turned) in zip(PERIODS, self._sums, strict=True):
            turn = 2j * math.pi / period
            at_start = cmath.exp(turn * self._end)
            for sign, start, middle, end in spans:
                at_middle, at_end = cmath.exp(turn * middle), cmath.exp(turn * end)
                z = (
                    sign
                    * (
                        (at_middle - at_start) / (middle - start)
                        - (at_end - at_middle) / (end - middle)
                    )
                    / turn
                )
                total, squares, turned = total + z, squares + abs(z) ** 2, turned + z * z
                at_start = at_end
            sums.append((total, squares, turned))
        longer._sums = sums
        return longer

    @property
    def danger(self) -> float:
        """The mean of the log ratios over the half-width of its interval, for the period and the
        phase of a wave that make it largest. From 1 on, a wave alone looks like an effect. Raises
        ValueError for fewer than two pairs."""
        share = max(self._largest_share(*sums) for sums in self._sums)
        errors = math.sqrt((self._pairs - 1) * share / (1 - share))
        return errors / half_width(self._pairs)

    def _largest_share(self, total: complex, squares: float, turned: complex) -> float:
        """The largest (over phases) square of the mean of the log ratios over the mean of their
        squares, noise included; below 1."""
        noise = 2 * NOISE**2 * self._pairs
        cosine, sine, mixed = (
            (squares + turned.real) / 2 + noise,
            (squares - turned.real) / 2 + noise,
            -turned.imag / 2,
        )
        a, b = total.real, -total.imag
        return (
            (sine * a * a - 2 * mixed * a * b + cosine * b * b)
            / (cosine * sine - mixed * mixed)
            / self._pairs
        )
