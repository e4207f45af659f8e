"""Random search and Optuna's TPE over a measured grid: when does each hold a point as good as 95 %
of the best?

They are replayed on the grid's own figures, each evaluation with the time that it took in the grid.
So they see the same noise and the same machine.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence

from benchmarks.tuning.spaces import Space
from gpuconsole.model.knobs.catalogue import Knobs

GOOD = 0.95


def best_rate(rates: Sequence[Sequence[float]]) -> float:
    """The rate of the best point, by the blocks of one half if the other half chose it: the largest
    of many means is too large.

    `rates`: for each point its blocks, at least two.
    """
    found = []
    for chosen_by in (0, 1):
        best = max(rates, key=lambda one: statistics.fmean(one[chosen_by::2]))
        found.append(statistics.fmean(best[1 - chosen_by :: 2]))
    return statistics.fmean(found)


def held(order: Sequence[int], seen: Sequence[float], scored: Sequence[float]) -> list[float]:
    """After each evaluation, the rate of the point that was best by `seen`. `scored` may be other
    blocks, which are independent of that choice."""
    best = itertools.accumulate(order, lambda one, other: other if seen[other] > seen[one] else one)
    return [scored[number] for number in best]


def median_curve(curves: Sequence[Sequence[float]], best: float) -> list[float]:
    """The median of the curves as a share of `best`, after each evaluation, as far as all curves
    go."""
    return [statistics.median(rates) / best for rates in zip(*curves, strict=False)]


def random_order(count: int, seed: int) -> list[int]:
    """Point numbers in the order of a random search without repetition."""
    return random.Random(seed).sample(range(count), count)


def tpe_order(
    points: Sequence[Knobs], rates: Sequence[float], space: Space, seed: int
) -> list[int]:
    """Point numbers in the order of Optuna's TPE. A repeated point costs nothing, because its
    figure is known."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    numbers = {key(point): number for number, point in enumerate(points)}
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    asked: dict[int, None] = {}
    for _ in range(20 * len(points)):
        trial = study.ask()
        for name, values in space.items():
            trial.suggest_categorical(name, values)
        number = numbers[key(dict(trial.params))]
        study.tell(trial, rates[number])
        asked[number] = None
        if len(asked) == len(points):
            break
    return list(asked)


def key(knobs: Knobs) -> str:
    return repr(sorted(knobs.items()))
