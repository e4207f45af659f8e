"""Trials of a change without effect beside a real process that is busy for 2 of every 4 s: false
wins.

    python -m benchmarks.trial_neighbour [--trials 40] [--scenario tiny-batch] [--set num_workers=2]
        [--neighbours 1 --busy 2 --period 4] [--keep]

The trials are live, in one console, as a user would start them, with their usual time limit of 20
s. `--busy 0`: without the neighbour. `--scenario data-starved --set num_workers=2 --busy 0`: two
workers that wait for storage bring their batches in bursts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence

from benchmarks.diagbench.run import burning
from benchmarks.machine import keep
from gpuconsole.experiments.session import LiveSession
from gpuconsole.experiments.tune import until_diagnosed
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.session.api import SessionError

NOTHING = "non_blocking"
"""A knob that changes nothing on a CPU."""
NEIGHBOUR = """
import time
begin = time.monotonic()
while time.monotonic() - begin < 7200:
    late = (time.monotonic() - begin) % {period}
    if late >= {busy}:
        time.sleep({period} - late)
"""


async def measure(scenario: str, count: int, settings: Knobs) -> list[Trial]:
    """`count` trials of NOTHING, one after the other, each at once after the one before. Raises
    SessionError."""
    engine = LiveSession(interval_s=1.0, device="cpu", keeps="chosen")
    await engine.open()
    trials = []
    try:
        await engine.start(scenario, settings)
        await until_diagnosed(engine, lambda: False)
        for _ in range(count):
            run = engine.view().run
            if run is None:
                raise SessionError("the run has ended")
            trial = await engine.try_change({NOTHING: not run.knobs[NOTHING]}, keep=False)
            trials.append(trial)
            print(f"{len(trials)}. {line(trial)}", flush=True)
        await engine.stop()
    finally:
        await engine.close()
    return trials


def line(trial: Trial) -> str:
    speedup = trial.speedup
    measured = (
        f"{speedup.estimate:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}]"
        if speedup
        else trial.error or "not measured"
    )
    return f"{trial.verdict} {measured}, {trial.blocks} blocks, {trial.elapsed_s:.1f} s"


def figures(trials: Sequence[Trial]) -> dict[str, object]:
    """The counts of a series of trials without effect."""
    done = [trial for trial in trials if trial.state == "done" and trial.speedup is not None]
    return {
        "trials": len(trials),
        "failed": len(trials) - len(done),
        **{
            verdict: sum(trial.verdict == verdict for trial in done)
            for verdict in ("win", "worse", "no_gain", "undecided")
        },
        "covered": sum(
            trial.speedup.low <= 1 <= trial.speedup.high
            for trial in done
            if trial.speedup is not None
        ),
        "estimate_mean": statistics.fmean(
            trial.speedup.estimate for trial in done if trial.speedup is not None
        )
        if done
        else None,
        "elapsed_mean_s": statistics.fmean(trial.elapsed_s for trial in done) if done else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument(
        "--scenario", default="tiny-batch", help="with short steps, so that a trial has many blocks"
    )
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the scenario"
    )
    parser.add_argument(
        "--neighbours",
        type=int,
        default=1,
        help="such processes; a core that stays free takes the edge off one of them",
    )
    parser.add_argument(
        "--busy",
        type=float,
        default=2.0,
        help="seconds of each period in which the neighbour computes; 0: no neighbour",
    )
    parser.add_argument("--period", type=float, default=4.0, help="seconds")
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/trial-neighbour-DATE.json"
    )
    args = parser.parse_args()
    settings = {
        name: CATALOGUE[name].parse(text)
        for name, _, text in (given.partition("=") for given in args.set)
    }
    with burning(
        args.neighbours if args.busy else 0, NEIGHBOUR.format(period=args.period, busy=args.busy)
    ):
        trials = asyncio.run(measure(args.scenario, args.trials, settings))
    result = figures(trials)
    print(result)
    if args.keep:
        asked = {
            "scenario": args.scenario,
            "settings": settings,
            "neighbours": args.neighbours,
            "busy_s": args.busy,
            "period_s": args.period,
            "change": NOTHING,
        }
        kept = [
            {
                name: getattr(trial, name)
                for name in ("verdict", "blocks", "elapsed_s", "order_seed", "clock")
            }
            for trial in trials
        ]
        for row, trial in zip(kept, trials, strict=True):
            row["speedup"] = (
                [trial.speedup.estimate, trial.speedup.low, trial.speedup.high]
                if trial.speedup
                else None
            )
            row["wall_speedup"] = (
                [trial.wall_speedup.estimate, trial.wall_speedup.low, trial.wall_speedup.high]
                if trial.wall_speedup
                else None
            )
        print(keep("trial-neighbour", {**asked, **result, "each": kept}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
