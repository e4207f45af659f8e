"""False wins, coverage and length of trials under simulated noise, with the random order of the
blocks and with the fixed order A B, B A.

    python -m benchmarks.trial_statistics --trials 2000 --keep

Order, lengths, pairs, intervals and verdicts are those of the functions
that a trial uses. Rates have a standard deviation of 3 % or 10 % between blocks. A rhythm has this
standard deviation too, and independent noise of a fifth of it is added; its period is given in
blocks of mean length.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from benchmarks.machine import keep
from gpuconsole.experiments.block_order import MEAN_STRETCH, Block, order
from gpuconsole.experiments.statistics import BASELINE, CHANGED, Pairs, speedup, verdict

DEVIATIONS = (0.03, 0.10)
"""Standard deviations of the log rates of blocks."""
EFFECT = 1.10
MAX_PAIRS = 20
PERIODS = (1.5, 2.0, 3.0, 3.7, 4.0, 6.0, 8.0, 12.0)


# --- noise ----------------------------------------------------------------------------------------
# Each kind of noise is a function of a generator of random numbers and a deviation: it returns the
# mean log rate between two times, which are given in blocks of mean length.

Noise = Callable[[float, float], float]


def white(chance: random.Random, deviation: float) -> Noise:
    return lambda start, end: chance.gauss(0.0, deviation)


def student_3(chance: random.Random, deviation: float) -> Noise:
    """Student's t with 3 degrees of freedom, whose standard deviation is the square root of 3."""
    scale = deviation / math.sqrt(3)
    return lambda start, end: (
        scale * chance.gauss(0, 1) / math.sqrt(chance.gammavariate(1.5, 2) / 3)
    )


def autocorrelated(chance: random.Random, deviation: float, correlation: float) -> Noise:
    """`correlation`: between one block and the next."""
    level = chance.gauss(0.0, deviation)

    def noise(start: float, end: float) -> float:
        nonlocal level
        level = correlation * level + math.sqrt(1 - correlation**2) * chance.gauss(0.0, deviation)
        return level

    return noise


def drift(chance: random.Random, deviation: float) -> Noise:
    """Half a percent per block, up or down."""
    slope = chance.choice((-0.005, 0.005))
    return lambda start, end: slope * (start + end) / 2 + chance.gauss(0.0, deviation)


def outliers(chance: random.Random, deviation: float) -> Noise:
    """2 % of the blocks are three times slower."""
    return lambda start, end: (
        chance.gauss(0.0, deviation) - (math.log(3) if chance.random() < 0.02 else 0.0)
    )


def two_speeds(chance: random.Random, deviation: float) -> Noise:
    """6 % faster or slower than the mean; the speed changes after a block with a probability of
    15 %."""
    level = chance.choice((-2, 2)) * deviation

    def noise(start: float, end: float) -> float:
        nonlocal level
        level *= -1 if chance.random() < 0.15 else 1
        return level + chance.gauss(0.0, deviation / 5)

    return noise


def sine(chance: random.Random, deviation: float, period: float) -> Noise:
    phase = chance.uniform(0, 2 * math.pi)

    def integral(time: float) -> float:
        return (
            -math.sqrt(2)
            * deviation
            * period
            / (2 * math.pi)
            * math.cos(2 * math.pi * time / period + phase)
        )

    return lambda start, end: (
        (integral(end) - integral(start)) / (end - start) + chance.gauss(0.0, deviation / 5)
    )


def on_and_off(chance: random.Random, deviation: float, period: float) -> Noise:
    """A neighbour that works for half of the period and rests for the other half."""
    phase = chance.random()

    def integral(time: float) -> float:
        share = (time / period + phase) % 1.0
        return deviation * period * (abs(share - 0.5) - 0.5)

    return lambda start, end: (
        (integral(end) - integral(start)) / (end - start) + chance.gauss(0.0, deviation / 5)
    )


NOISES: dict[str, Callable[[random.Random, float], Noise]] = {
    "independent, normal": white,
    "Student t, 3 degrees": student_3,
    "autocorrelated 0.5": partial(autocorrelated, correlation=0.5),
    "autocorrelated 0.8": partial(autocorrelated, correlation=0.8),
    "drift": drift,
    "2 % of blocks three times slower": outliers,
    "two speeds, switching at random": two_speeds,
    **{f"a rhythm of {period:g} blocks, sine": partial(sine, period=period) for period in PERIODS},
    **{
        f"a rhythm of {period:g} blocks, on and off": partial(on_and_off, period=period)
        for period in PERIODS
    },
}


# --- trials ---------------------------------------------------------------------------------------


class Ended(NamedTuple):
    verdict: str
    pairs: int
    covered: bool
    """Whether the interval holds the true effect when the trial stops."""


def fixed_order() -> Iterator[tuple[Block, Block]]:
    """The order A B, B A with blocks of equal length."""
    for first, second in itertools.cycle(((BASELINE, CHANGED), (CHANGED, BASELINE))):
        yield Block(first, MEAN_STRETCH), Block(second, MEAN_STRETCH)


@functools.cache
def random_order(seed: int) -> list[tuple[Block, Block]]:
    """The order of a trial. Every kind of noise meets the same orders, because a drawing takes
    longer than the rest of a simulated trial."""
    return list(itertools.islice(order(seed), MAX_PAIRS))


class NeighbourPairs(Pairs):
    """The null pairs of the fixed order: only neighbours of the same side."""

    @property
    def null_log_ratios(self) -> list[float]:
        return [
            ratio
            for ratio, (before, first) in zip(
                super().null_log_ratios, itertools.pairwise(self._firsts), strict=True
            )
            if before != first
        ]


def trial(
    noise: str, seed: int, effect: float, fixed: bool = False, deviation: float = DEVIATIONS[0]
) -> Ended:
    """A simulated trial, which ends like a real trial: the verdict is asked after every pair."""
    chance = random.Random(f"{noise} {seed} {effect}")
    mean_log_rate = NOISES[noise](chance, deviation)
    pairs: Pairs = NeighbourPairs() if fixed else Pairs()
    decided, end = None, chance.uniform(0.0, 100.0)
    for pair in itertools.islice(fixed_order(), MAX_PAIRS) if fixed else random_order(seed):
        log_rates = {}
        for block in pair:
            start, end = end, end + block.stretch / MEAN_STRETCH
            log_rates[block.arm] = mean_log_rate(start, end) + (
                math.log(effect) if block.arm == CHANGED else 0.0
            )
        pairs.add(pair[0].arm, log_rates)
        decided = verdict(pairs.log_ratios, pairs.null_log_ratios)
        if decided:
            break
    measured = speedup(pairs.log_ratios)
    assert measured is not None
    covered = measured.low <= effect <= measured.high
    return Ended(decided or "undecided", len(pairs.log_ratios), covered)


def row(noise: str, trials: int, fixed: bool, deviation: float) -> dict[str, float]:
    """The figures of one kind of noise: `trials` without effect, and as many with EFFECT."""
    equal = [trial(noise, seed, 1.0, fixed, deviation) for seed in range(trials)]
    faster = [trial(noise, seed, EFFECT, fixed, deviation) for seed in range(trials)]
    return {
        "false_wins_ratio": statistics.fmean(ended.verdict == "win" for ended in equal),
        "false_worse_ratio": statistics.fmean(ended.verdict == "worse" for ended in equal),
        "coverage_without_effect_ratio": statistics.fmean(ended.covered for ended in equal),
        "coverage_ratio": statistics.fmean(ended.covered for ended in faster),
        "found_ratio": statistics.fmean(ended.verdict == "win" for ended in faster),
        "pairs": statistics.fmean(ended.pairs for ended in faster),
    }


HEAD = (
    "| noise between blocks | false wins | false worse | coverage, no effect | coverage, effect"
    " 1.10 | effect found | pairs |\n"
    "|---|---|---|---|---|---|---|"
)
FORMATS = {
    "pairs": ".1f",
    "found_ratio": ".2f",
    "false_wins_ratio": ".4f",
    "false_worse_ratio": ".4f",
}


def line(noise: str, of_random: dict[str, float], fixed: dict[str, float]) -> str:
    """A line of the table: random order, then the fixed order in brackets."""
    cells = []
    for name, value in of_random.items():
        form = FORMATS.get(name, ".3f")
        cells.append(
            f"{value:{form}}" if name not in fixed else f"{value:{form}} ({fixed[name]:{form}})"
        )
    return f"| {noise} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=2000,
        help="simulated trials of each kind, without and with the effect",
    )
    parser.add_argument(
        "--processes", type=int, help="processes that simulate (default: one for each core)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/trial-statistics-DATE.json"
    )
    args = parser.parse_args()
    rows: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    with ProcessPoolExecutor(args.processes) as pool:
        for deviation in DEVIATIONS:
            print(f"\nstandard deviation {deviation:.0%}\n\n{HEAD}")
            waiting = {
                noise: [
                    pool.submit(row, noise, args.trials, fixed, deviation)
                    for fixed in (False, True)
                ]
                for noise in NOISES
            }
            of_deviation = rows[f"{deviation:g}"] = {}
            for noise, (of_random, fixed) in waiting.items():
                figures = {"random_order": of_random.result(), "fixed_order": fixed.result()}
                of_deviation[noise] = figures
                print(line(noise, *figures.values()), flush=True)
    if args.keep:
        print(
            keep(
                "trial-statistics",
                {
                    "trials": args.trials,
                    "effect": EFFECT,
                    "rows_by_deviation": rows,
                },
            )
        )


if __name__ == "__main__":
    main()
