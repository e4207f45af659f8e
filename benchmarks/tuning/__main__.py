"""How soon does `gpuconsole tune` have what exhaustive search finds?

    python -m benchmarks.tuning [--only SCENARIO ...] [--repeats 3] [--budget 200] [--keep]

For each scenario: every point of a grid is measured in turn; random search and Optuna's TPE (pip install optuna) are replayed on those
figures; the tuner runs live. Then what the tuner ended with and the grid's best run in turn, block by block. An evaluation of grid, random
search and TPE counts as EVALUATION_BLOCKS blocks, the repeats that a sweep makes by default, so that it could claim what the tuner proves.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from typing import Any

from benchmarks.machine import keep
from benchmarks.tuning.searches import GOOD, first_good, random_order, tpe_order
from benchmarks.tuning.spaces import SPACES, Space
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.device import Device
from gpuconsole.model.knobs import Knobs
from gpuconsole.model.sweep import Sweep
from gpuconsole.runtime.catalog import find_scenario
from gpuconsole.runtime.engine import Engine
from gpuconsole.runtime.serving import ServingChoice
from gpuconsole.runtime.sweeping import Sweeper
from gpuconsole.runtime.tuner import Tuner
from gpuconsole.tuning.sweeps import points

EVALUATION_BLOCKS = 10
SEEDS = 20
HOST = Device("cpu", "host")


async def measured(scenario: str, found: list[Knobs], repeats: int) -> tuple[Sweep, float]:
    """The points, each `repeats` times, and what one block took, change and settling included."""
    chosen = find_scenario(scenario)
    sweeper = Sweeper(chosen, chosen.knobs_for("cpu"), HOST, ServingChoice())
    begun: list[float] = []
    try:
        sweep = await sweeper.run(found, repeats, False, lambda sweep: begun.append(time.monotonic()))
    finally:
        await sweeper.close()
    blocks = begun[len(found) - 1 :]  # the first round warms up
    return sweep, (blocks[-1] - blocks[0]) / (len(blocks) - 1)


async def tuned(scenario: str, budget_s: float) -> Certificate:
    engine = Engine(device="cpu")
    await engine.open()
    try:
        await engine.start(scenario, {})
        return await Tuner(engine, scenario, budget_s).run()
    finally:
        await engine.close()


async def compare(scenario: str, space: Space, repeats: int, budget_s: float) -> dict[str, Any]:
    """One scenario, all searches. Times in seconds, without the start of the workload."""
    grid = points(space, {}, grid=True)
    sweep, block_s = await measured(scenario, grid, repeats)
    assert sweep.best is not None and sweep.best.mean is not None
    best, evaluation_s = sweep.best.mean, EVALUATION_BLOCKS * block_s
    certificate = await tuned(scenario, budget_s)
    names = sweep.best.knobs.keys() | certificate.changed.keys()  # each side says all, since both run in one process
    theirs = {name: sweep.best.knobs.get(name, certificate.start[name]) for name in names}
    duel, _ = await measured(scenario, [theirs, {name: certificate.end[name] for name in names}], EVALUATION_BLOCKS)
    theirs_rate, our_rate = (point.mean or 0.0 for point in duel.points)
    reached = our_rate / theirs_rate
    searches = {
        "random": [first_good(random_order(sweep.points, seed), best) for seed in range(SEEDS)],
        "tpe": [first_good(tpe_order(sweep.points, space, seed), best) for seed in range(SEEDS)],
    }
    return {
        "points": len(grid),
        "block_s": round(block_s, 3),
        "grid_s": round(len(grid) * evaluation_s, 1),
        "grid_best": sweep.best.knobs,
        "random_s": round(statistics.median(searches["random"]) * evaluation_s, 1),
        "tpe_s": round(statistics.median(searches["tpe"]) * evaluation_s, 1),
        "tune_s": good_after(certificate, reached),
        "tune_end_s": certificate.elapsed_s,
        "tune_end": {name: certificate.end[name] for name in certificate.changed},
        "reached": round(reached, 3),
        "curve": [(one.at_s, one.trial.speedup.estimate if one.trial.speedup else None, one.trial.kept) for one in certificate.attempts],
        "rates": [(point.knobs, point.rates) for point in sweep.points],
    }


def good_after(certificate: Certificate, reached: float) -> float | None:
    """When the tuner held 95 % of the grid's best: what the changes kept later gained is taken off what it ended with."""
    if reached < GOOD:
        return None
    kept = [one for one in certificate.attempts if one.trial.kept and one.trial.speedup]
    share, when = reached, 0.0
    for one in reversed(kept):
        assert one.trial.speedup is not None
        before = share / one.trial.speedup.estimate
        if before < GOOD:
            when = one.at_s
            break
        share = before
    return when


async def _main(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in args.only or SPACES:
        found = results[name] = await compare(name, SPACES[name], args.repeats, args.budget)
        times = f"grid {found['grid_s']} s, random {found['random_s']} s, TPE {found['tpe_s']} s, tune {found['tune_s']} s"
        print(f"{name:<18} {times}; reached {found['reached']:.1%} of the grid's best with {found['tune_end']}", flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=SPACES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float, default=200.0, help="seconds that the tuner may take")
    parser.add_argument("--keep", action="store_true", help="write the result under benchmarks/results")
    args = parser.parse_args()
    results = asyncio.run(_main(args))
    if args.keep:
        print(f"kept in {keep('tuning', {'evaluation_blocks': EVALUATION_BLOCKS, 'results': results})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
