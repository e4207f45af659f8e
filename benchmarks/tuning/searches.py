"""Random search and Optuna's TPE over a grid that has been measured: when does each hold something as good as 95 % of the best?

They are replayed on the grid's own figures, each evaluation at the cost that the grid's had: so they see no other noise, and no other machine.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence

from benchmarks.tuning.spaces import Space
from gpuconsole.model.knobs import Knobs

GOOD = 0.95


def best_rate(rates: Sequence[Sequence[float]]) -> float:
    """What the best point does, by its blocks of one half where the other half chose it: the largest of many means is larger than it should be.

    `rates`: for each point its blocks, two at least.
    """
    found = []
    for chosen_by in (0, 1):
        best = max(rates, key=lambda one: statistics.fmean(one[chosen_by::2]))
        found.append(statistics.fmean(best[1 - chosen_by :: 2]))
    return statistics.fmean(found)


def best_so_far(orders: Sequence[Sequence[float]], best: float) -> list[float]:
    """After each evaluation the best rate that was seen by then, as a share of `best`: the median of the `orders`."""
    seen = [itertools.accumulate(order, max) for order in orders]
    return [statistics.median(rates) / best for rates in zip(*seen, strict=False)]


def random_order(rates: Sequence[float], seed: int) -> list[float]:
    """The rates in the order of a random search without repetition."""
    return random.Random(seed).sample(rates, len(rates))


def tpe_order(points: Sequence[Knobs], rates: Sequence[float], space: Space, seed: int) -> list[float]:
    """The rates in the order in which Optuna's TPE asks for them; a point asked for again costs nothing, since its figure is known."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    known = {key(point): rate for point, rate in zip(points, rates, strict=True)}
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    asked: dict[str, float] = {}
    for _ in range(20 * len(points)):
        trial = study.ask()
        for name, values in space.items():
            trial.suggest_categorical(name, values)
        point = key(dict(trial.params))
        study.tell(trial, known[point])
        asked[point] = known[point]
        if len(asked) == len(points):
            break
    return list(asked.values())


def key(knobs: Knobs) -> str:
    return repr(sorted(knobs.items()))
