"""False wins, coverage and length of trials whose steps are drawn one by one: bursts, loaders,
periodic work, stalls.

    python -m benchmarks.trial_steps --trials 400 --keep

The trial is `run_trial` itself, on a clock that the simulated steps move. Each row has two sides
with their true ratio. After a switch, a side goes on where it stopped, as the loop of a job does. A
trial says how rare a stall it was long enough to see. A false win because of a rarer stall is no
fault of the trial: the figures in brackets (`within what was looked for`) leave such wins out.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.machine import keep
from gpuconsole.experiments import trial as trials
from gpuconsole.experiments.block_order import Pair, order
from gpuconsole.experiments.statistics import BASELINE, CHANGED
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import PHASES, Run, Step, Summary
from gpuconsole.session.figures.distributions import distribution

STEP_S = 0.05
NOISE = 0.02
MESSAGE_S = 0.25
MAX_PAIRS = 40
ORDERS = 300

Draw = Callable[[random.Random], Iterator[float]]

# --- steps ----------------------------------------------------------------------------------------


def constant(mean: float) -> Draw:
    def draw(chance: random.Random) -> Iterator[float]:
        while True:
            yield mean * math.exp(chance.gauss(0, NOISE))

    return draw


def lognormal(mean: float, sigma: float) -> Draw:
    def draw(chance: random.Random) -> Iterator[float]:
        while True:
            yield mean * math.exp(chance.gauss(-sigma * sigma / 2, sigma))

    return draw


def bursts(mean: float, count: int, quick: float = 0.005) -> Draw:
    """`count` - 1 quick steps, then a long one."""

    def draw(chance: random.Random) -> Iterator[float]:
        for index in itertools.count(chance.randrange(count)):
            yield (quick if index % count else mean * count - quick * (count - 1)) * math.exp(
                chance.gauss(0, NOISE)
            )

    return draw


def loader(
    per_batch: float, workers: int, compute: float = 0.01, prefetch: int = 2, spread: float = 0.1
) -> Draw:
    """A DataLoader that delivers in order, at the limit of its storage: each of N workers takes N
    times as long for a batch as one alone."""

    def draw(chance: random.Random) -> Iterator[float]:
        def takes(mean: float) -> float:
            return mean * math.exp(chance.gauss(-spread * spread / 2, spread))

        if not workers:
            while True:
                yield compute + takes(per_batch - compute)
        free, ready, asked, t, before = [0.0] * workers, deque[float](), 0, 0.0, 0.0
        while True:
            while len(ready) < workers * prefetch:
                worker, asked = asked % workers, asked + 1
                free[worker] = max(free[worker], t) + takes(workers * per_batch)
                ready.append(free[worker])
            t = max(t, ready.popleft()) + compute
            yield t - before
            before = t

    return draw


def periodic(mean: float, every: int, seconds: float) -> Draw:
    def draw(chance: random.Random) -> Iterator[float]:
        for index in itertools.count(chance.randrange(every)):
            yield mean * math.exp(chance.gauss(0, NOISE)) + (seconds if index % every == 0 else 0.0)

    return draw


def stalls(mean: float, share: float, seconds: float) -> Draw:
    """Steps whose mean with the stalls is `mean`; a `share` of them stalls."""

    def draw(chance: random.Random) -> Iterator[float]:
        while True:
            yield (mean - share * seconds) * math.exp(chance.gauss(0, NOISE)) + (
                seconds if chance.random() < share else 0.0
            )

    return draw


class Row(NamedTuple):
    """Two sides with their knobs and true ratio. `stall`: the share of steps that stall on a
    side."""

    before: Draw
    after: Draw
    truth: float = 1.0
    knobs: Knobs = {"optim": "adamw"}
    changes: Knobs = {"optim": "adamw_fused"}
    stall: float = 0.0


def _workers(before: int, after: int, slower: float = 1.0) -> Row:
    sides = loader(slower * STEP_S, before), loader(STEP_S, after)
    return Row(
        *sides, slower, {"num_workers": before, "prefetch_factor": 2}, {"num_workers": after}
    )


LOGS: Knobs = {"optim": "adamw", "log_every": 10}
EVEN = constant(STEP_S)
ROWS: dict[str, Row] = {
    "constant": Row(EVEN, EVEN),
    "constant, effect 1.10": Row(constant(1.1 * STEP_S), EVEN, 1.1),
    **{
        f"lognormal {sigma:g}": Row(lognormal(STEP_S, sigma), lognormal(STEP_S, sigma))
        for sigma in (0.3, 0.6, 1.0)
    },
    **{
        f"lognormal {sigma:g} to constant": Row(lognormal(STEP_S, sigma), EVEN)
        for sigma in (0.3, 1.0)
    },
    **{
        f"constant to lognormal {sigma:g}": Row(EVEN, lognormal(STEP_S, sigma))
        for sigma in (0.3, 1.0)
    },
    **{
        f"bursts of {count} to constant": Row(bursts(STEP_S, count), EVEN)
        for count in (2, 3, 4, 8, 16)
    },
    **{
        f"constant to bursts of {count}": Row(EVEN, bursts(STEP_S, count))
        for count in (2, 3, 4, 8, 16)
    },
    **{
        f"bursts of {count} on both sides": Row(bursts(STEP_S, count), bursts(STEP_S, count))
        for count in (2, 4, 8, 16)
    },
    **{
        f"bursts of {count}, effect 1.10": Row(
            bursts(1.1 * STEP_S, count), bursts(STEP_S, count), 1.1
        )
        for count in (2, 4, 8)
    },
    **{
        f"loader at its limit, {before} to {after} workers": _workers(before, after)
        for before, after in (
            (0, 1),
            (0, 4),
            (1, 6),
            (2, 8),
            (3, 5),
            (4, 0),
            (4, 1),
            (6, 1),
            (8, 2),
        )
    },
    "loader, 0 to 4 workers, effect 2": _workers(0, 4, 2.0),
    "log every 10 steps": Row(periodic(STEP_S, 10, 0.2), periodic(STEP_S, 10, 0.2), knobs=LOGS),
    "log every 10 steps, effect 1.10": Row(
        periodic(0.057, 10, 0.2), periodic(0.05, 10, 0.2), 1.1, LOGS
    ),
    "work every 25 steps, not known": Row(periodic(STEP_S, 25, 0.3), periodic(STEP_S, 25, 0.3)),
    "evaluation every 100 steps, not known": Row(
        periodic(STEP_S, 100, 1.0), periodic(STEP_S, 100, 1.0)
    ),
    "garbage collection every 60 steps": Row(
        periodic(STEP_S, 60, 0.15), periodic(STEP_S, 60, 0.15)
    ),
    "1 % stall for 0.5 s, both sides": Row(stalls(STEP_S, 0.01, 0.5), stalls(STEP_S, 0.01, 0.5)),
    "1 % stall for 0.5 s, with the change": Row(EVEN, stalls(STEP_S, 0.01, 0.5), stall=0.01),
    "1 % stall for 0.5 s, without the change": Row(stalls(STEP_S, 0.01, 0.5), EVEN, stall=0.01),
    "5 % stall for 0.5 s, with the change": Row(EVEN, stalls(STEP_S, 0.05, 0.5), stall=0.05),
    "5 % stall for 0.5 s, both sides": Row(stalls(STEP_S, 0.05, 0.5), stalls(STEP_S, 0.05, 0.5)),
}


# --- trials ---------------------------------------------------------------------------------------


class Job:
    """Both sides of a live trial, in messages of MESSAGE_S; `now` is the time on the clock of the
    trial."""

    method = "live ABBA"

    def __init__(self, row: Row, seed: int) -> None:
        self._sides = {
            arm: draw(random.Random(f"{seed} {arm}"))
            for arm, draw in ((BASELINE, row.before), (CHANGED, row.after))
        }
        self.trial_steps: list[Step] = []
        self.arm, self.now = BASELINE, 0.0

    async def switch_to(self, arm: int) -> None:
        self.trial_steps.clear()
        self.arm = arm

    def worker(self, arm: int) -> Any:
        return self

    def monotonic(self) -> float:
        return self.now

    async def next_steps(self) -> None:
        until = self.now + MESSAGE_S
        while self.now < until:
            seconds = next(self._sides[self.arm])
            self.now += seconds
            self.trial_steps.append(
                Step(
                    0, self.now, seconds, 32, 0, (seconds, *[0.0] * (len(PHASES) - 1)), arm=self.arm
                )
            )


@functools.cache
def _order(seed: int) -> list[Pair]:
    """The drawing takes longer than the rest of a simulated trial."""
    return list(itertools.islice(order(seed), MAX_PAIRS))


def simulated(row: Row, seed: int) -> Trial:
    """One trial of `row`."""
    job = Job(row, seed)
    mean = statistics.fmean(itertools.islice(row.before(random.Random(f"{seed} before")), 400))
    run = Run(
        "1",
        "train.py",
        "job",
        row.knobs,
        "gpu:0",
        summary=Summary(step_time_s=distribution([mean])),
    )
    asked = Trial("1", "1", row.changes, order_seed=seed % ORDERS)
    with (
        mock.patch.object(trials, "time", job),
        mock.patch.object(trials, "order", _order),
    ):
        return asyncio.run(trials.run_trial(asked, run, job, lambda trial: None))  # type: ignore[arg-type]


def figures(name: str, count: int) -> dict[str, float]:
    row = ROWS[name]
    ended = [simulated(row, seed) for seed in range(count)]
    wrong = {"win": row.truth <= 1.0, "worse": row.truth >= 1.0}
    looked = [
        trial for trial in ended if not row.stall or 1 / row.stall <= max(1, trial.stalls_from)
    ]

    def share(verdict: str, of: list[Trial]) -> float:
        return sum(trial.verdict == verdict for trial in of) / count

    return {
        "false_wins_ratio": share("win", ended) if wrong["win"] else 0.0,
        "false_wins_within_ratio": share("win", looked) if wrong["win"] else 0.0,
        "false_worse_ratio": share("worse", ended) if wrong["worse"] else 0.0,
        "false_worse_within_ratio": share("worse", looked) if wrong["worse"] else 0.0,
        "coverage_ratio": statistics.fmean(
            trial.speedup is not None and trial.speedup.low <= row.truth <= trial.speedup.high
            for trial in ended
        ),
        "found_ratio": share("win", ended) if not wrong["win"] else math.nan,
        "pairs": statistics.fmean(trial.blocks / 2 for trial in ended),
        "seconds": statistics.fmean(trial.elapsed_s for trial in ended),
        "median": statistics.median(
            trial.speedup.estimate for trial in ended if trial.speedup is not None
        ),
        "stalls_from": statistics.median(trial.stalls_from for trial in ended),
    }


HEAD = (
    "| steps | false wins (within what was looked for) | false worse (within) | coverage | effect"
    " found | pairs | seconds | median ratio | looked for a stall in one of |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def line(name: str, row: dict[str, float]) -> str:
    found = "" if math.isnan(row["found_ratio"]) else f"{row['found_ratio']:.2f}"
    wins, worse = (
        f"{row[f'false_{kind}_ratio']:.4f} ({row[f'false_{kind}_within_ratio']:.4f})"
        for kind in ("wins", "worse")
    )
    return (
        f"| {name} | {wins} | {worse} | {row['coverage_ratio']:.3f} | {found} | {row['pairs']:.1f}"
        f" | {row['seconds']:.1f} | {row['median']:.3f} | {row['stalls_from']:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=400, help="simulated trials of each row")
    parser.add_argument(
        "--processes", type=int, help="processes that simulate (default: one for each core)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/trial-steps-DATE.json"
    )
    args = parser.parse_args()
    print(HEAD)
    rows = {}
    with ProcessPoolExecutor(args.processes) as pool:
        for name, waiting in [(name, pool.submit(figures, name, args.trials)) for name in ROWS]:
            rows[name] = waiting.result()
            print(line(name, rows[name]), flush=True)
    if args.keep:
        for row in rows.values():
            row.update({name: -1.0 for name, value in row.items() if math.isnan(value)})
        print(keep("trial-steps", {"trials": args.trials, "rows": rows}))


if __name__ == "__main__":
    main()
