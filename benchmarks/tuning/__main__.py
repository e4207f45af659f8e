"""How soon does `gpuconsole tune` reach what an exhaustive search finds?

    python -m benchmarks.tuning [--only SCENARIO ...] [--sessions 5] [--repeats 10] [--budget 120]
        [--grids FILE] [--rows FILE] [--keep]

For each scenario every point of a grid is measured in turn, with --repeats blocks: ten, as in
`gpuconsole sweep`, and as needed to detect 5 % on a machine whose blocks differ by 10 to 20 %.
Random search and Optuna's TPE (pip install optuna) are replayed on these figures. The tuner runs
live, may change only the grid's knobs, and its diagnosis counts as time. An evaluation takes the
time of its blocks. The report also has the time of searches that use only the first QUICK blocks of
each point, the lowest possible cost. The tuner's time is the median of --sessions live sessions,
with the scenarios in turn; that of the searches is the median of SEEDS replays. No search knows
when it has reached the target.

The largest of many estimates is too large. So the FINALISTS best points of the grid run again in
turn, and the tuner's result is compared with the best of them by all its blocks, in FINAL_BLOCKS
blocks each in turn, after each session: the median of the pairs. For the searches see
`searches.best_rate`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.intervals import interval
from benchmarks.machine import keep
from benchmarks.pictures import svg
from benchmarks.tuning.curves import curve
from benchmarks.tuning.searches import GOOD, best_rate, held, median_curve, random_order, tpe_order
from benchmarks.tuning.spaces import SPACES, Space
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.experiments.session import LiveSession
from gpuconsole.experiments.sweep import Sweeper, points
from gpuconsole.experiments.tune import Tuner
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.experiments import Sweep, SweepPoint, Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device

FINALISTS = 4
QUICK = 2
FINAL_BLOCKS = 20
SEEDS = 20
HOST = Device("cpu", "host")


class Grid(msgspec.Struct):
    """The measurements of the exhaustive search, and the time of one block."""

    scenario: str
    repeats: int
    block_s: float
    points: list[SweepPoint]


async def measured(scenario: str, found: list[Knobs], repeats: int) -> tuple[Sweep, float]:
    """The points, each `repeats` times, and the time of one block, change and settling included."""
    chosen = find_scenario(scenario)
    sweeper = Sweeper(chosen, chosen.knobs_for("cpu"), HOST, ServingChoice())
    begun: list[float] = []
    try:
        sweep = await sweeper.run(
            found, repeats, False, lambda sweep: begun.append(time.monotonic())
        )
    finally:
        await sweeper.close()
    blocks = begun[len(found) - 1 :]  # the first round warms up
    return sweep, (blocks[-1] - blocks[0]) / (len(blocks) - 1)


async def tuned(scenario: str, space: Space, budget_s: float) -> Certificate:
    engine = LiveSession(device="cpu")
    await engine.open()
    try:
        await engine.start(scenario, {})
        # the searches' clock does not count that either
        while (run := engine.view().run) is None or run.state == "starting":
            await asyncio.sleep(0.05)
        return await Tuner(engine, scenario, budget_s, only=list(space)).run()
    finally:
        await engine.close()


def spent(trial: Trial) -> tuple[float, list[float] | None]:
    """The duration, and the speed-up with its interval."""
    found = trial.speedup
    return round(trial.elapsed_s, 1), found and [
        round(value, 3) for value in (found.estimate, found.low, found.high)
    ]


async def exhaustive(scenario: str, space: Space, repeats: int) -> Grid:
    sweep, block_s = await measured(scenario, points(space, {}, grid=True), repeats)
    failed = [point.error for point in sweep.points if point.error or not point.rates]
    if failed:
        raise RuntimeError(f"{scenario}: not every point of the grid can be had: {failed[0]}")
    return Grid(scenario, repeats, block_s, sweep.points)


async def best_point(found: Grid) -> int:
    """The number of the point that is best by the grid's blocks and as many again."""
    finalists = sorted(range(len(found.points)), key=lambda n: -(found.points[n].mean or 0.0))[
        :FINALISTS
    ]
    again, _ = await measured(
        found.scenario, [found.points[n].knobs for n in finalists], found.repeats
    )
    pairs = zip((found.points[n] for n in finalists), again.points, strict=True)
    means = [
        SweepPoint({}, old.rates + new.rates, old.seconds + new.seconds).mean or 0.0
        for old, new in pairs
    ]
    return finalists[means.index(max(means))]


async def compare(found: Grid, space: Space, budget_s: float, best: Knobs | None) -> dict[str, Any]:
    """One measured session. Times in seconds, without the start of the workload. `best`: the best
    point of the grid, if a session has determined it."""
    scenario, grid = found.scenario, [point.knobs for point in found.points]
    certificate = await tuned(scenario, space, budget_s)
    best = best or grid[await best_point(found)]
    ours = {name: certificate.end[name] for name in space}
    final, _ = await measured(scenario, [ours, best], FINAL_BLOCKS)
    shares = [
        our_rate / its
        for our_rate, its in zip(*(point.rates for point in final.points), strict=True)
    ]
    reached, *bounds = interval(shares)
    return {
        "scenario": scenario,
        "repeats": found.repeats,
        "budget_s": budget_s,
        "points": len(grid),
        "block_s": round(found.block_s, 3),
        "grid_best": best,
        "tune_end_s": certificate.elapsed_s,
        "tune_end": {name: certificate.end[name] for name in certificate.changed},
        "reached": round(reached, 3),
        "reached_interval": [round(bound, 3) for bound in bounds],
        "shares": [round(share, 4) for share in shares],
        "attempts": [
            (one.at_s, one.trial.changes, one.trial.verdict, one.trial.kept, *spent(one.trial))
            for one in certificate.attempts
        ],
        "tune_curve": tuner_curve(certificate, reached),
        "rates": [(point.knobs, point.rates) for point in found.points],
    }


ALIKE = ("scenario", "repeats", "budget_s", "points", "block_s", "grid_best", "rates")
"""What the sessions of one scenario have in common: the grid."""


def told(rows: list[dict[str, Any]], space: Space) -> dict[str, Any]:
    """One scenario's sessions, with the results of the searches on its grid."""
    grid = {name: rows[0][name] for name in ALIKE}
    curves, quick = replayed(grid, space, grid["repeats"]), replayed(grid, space, QUICK)
    own = [[(float(t), float(share)) for t, share in row["tune_curve"]] for row in rows]
    curves["tune"] = median_of_sessions(own)
    best = best_rate([rates for _, rates in grid["rates"]])
    reached, *bounds = interval([share for row in rows for share in row["shares"]])
    return {
        **grid,
        "good_points": sum(statistics.fmean(rates) >= GOOD * best for _, rates in grid["rates"]),
        "grid_s": curves["grid"][-1][0],
        "random_s": good_at(curves["random"]),
        "tpe_s": good_at(curves["tpe"]),
        "quick_grid_s": quick["grid"][-1][0],
        "quick_random_s": good_at(quick["random"]),
        "quick_tpe_s": good_at(quick["tpe"]),
        "tune_s": good_at(curves["tune"]),
        "tune_end_s": statistics.median(row["tune_end_s"] for row in rows),
        "reached": round(reached, 3),
        "reached_interval": [round(bound, 3) for bound in bounds],
        "sessions": [
            {"tune_s": good_at(found)}
            | {key: value for key, value in row.items() if key not in ALIKE}
            for row, found in zip(rows, own, strict=True)
        ],
        "curves": curves,
    }


Curve = list[tuple[float, float]]
"""(seconds, share of the best that is held by then)."""


def replayed(row: dict[str, Any], space: Space, blocks: int) -> dict[str, Curve]:
    """Each search on the grid's figures, `blocks` of each point: the median of SEEDS runs. The
    other blocks, if any, score the point that it holds."""
    grid = [knobs for knobs, _ in row["rates"]]
    seen = [statistics.fmean(rates[:blocks]) for _, rates in row["rates"]]
    others = [rates[blocks:] or rates for _, rates in row["rates"]]
    scored, best = [statistics.fmean(rates) for rates in others], best_rate(others)
    orders = {
        "grid": [range(len(grid))],
        "random": [random_order(len(grid), seed) for seed in range(SEEDS)],
        "tpe": [tpe_order(grid, seen, space, seed) for seed in range(SEEDS)],
    }
    curves = {
        name: median_curve([held(order, seen, scored) for order in taken], best)
        for name, taken in orders.items()
    }
    evaluation_s = blocks * row["block_s"]
    return {
        name: [(round(n * evaluation_s, 1), round(share, 4)) for n, share in enumerate(shares, 1)]
        for name, shares in curves.items()
    }


def median_of_sessions(curves: list[Curve]) -> Curve:
    """The share that half of the sessions have reached by then."""
    times = sorted({t for curve in curves for t, _ in curve})
    return [
        (
            t,
            round(
                statistics.median(max(at for at in curve if at[0] <= t)[1] for curve in curves), 4
            ),
        )
        for t in times
    ]


def good_at(curve: Curve) -> float | None:
    """The time when it reached GOOD of the best; None if it never did."""
    return next((t for t, share in curve if share >= GOOD), None)


def tuner_curve(certificate: Certificate, reached: float) -> Curve:
    """The share at the start and after each kept change, computed back from the end."""
    # all together it was slower than the start, which stands again
    if certificate.proof is not None and certificate.proof.kept:
        return [(0.0, round(reached, 4))]
    kept = [one for one in certificate.attempts if one.trial.kept and one.trial.speedup]
    curve, share = [], reached
    for one in reversed(kept):
        assert one.trial.speedup is not None
        curve.append((one.at_s, share))
        share /= one.trial.speedup.estimate
    return [(t, round(share, 4)) for t, share in [(0.0, share), *reversed(curve)]]


def table(results: dict[str, Any]) -> str:
    """Seconds until each search holds GOOD of the grid's best, for the tuner also by session, and
    the tuner's result as a share of it with its interval."""
    headings = (
        "scenario",
        "grid",
        "random",
        "TPE",
        "tune",
        "its end",
        f"by {QUICK} blocks: random",
        "TPE",
        "tune's end",
        "tune, each session",
    )
    lines = [headings]
    for name, found in results.items():
        times = (
            "grid_s",
            "random_s",
            "tpe_s",
            "tune_s",
            "tune_end_s",
            "quick_random_s",
            "quick_tpe_s",
        )
        searches = ["never" if found[key] is None else f"{found[key]:.0f}" for key in times]
        low, high = found["reached_interval"]
        each = ", ".join(
            "never" if one["tune_s"] is None else f"{one['tune_s']:.0f}"
            for one in found["sessions"]
        )
        lines.append((name, *searches, f"{found['reached']:.1%} [{low:.1%}, {high:.1%}]", each))
    widths = [max(len(line[n]) for line in lines) for n in range(len(headings))]
    aligned = (0, 8, 9)  # the rest are numbers
    rows = [
        "  ".join(
            f"{cell:<{w}}" if n in aligned else f"{cell:>{w}}"
            for n, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join(row.rstrip() for row in rows)


def read(path: Path | None, repeats: int, budget_s: float) -> dict[str, list[dict[str, Any]]]:
    """The finished sessions with these repeats and this budget, by scenario."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text().splitlines() if path is not None and path.exists() else ():
        row = json.loads(line)
        if (row["repeats"], row["budget_s"]) == (repeats, budget_s):
            found.setdefault(row["scenario"], []).append(row)
    return found


def read_grids(path: Path | None, repeats: int) -> dict[str, Grid]:
    """The grids with these repeats, by scenario; grids of another space are left out."""
    if path is None or not path.exists():
        return {}
    grids = [msgspec.json.decode(line, type=Grid) for line in path.read_bytes().splitlines()]
    wanted = {name: points(space, {}, grid=True) for name, space in SPACES.items()}
    fit = [
        one
        for one in grids
        if one.repeats == repeats
        and [point.knobs for point in one.points] == wanted.get(one.scenario)
    ]
    return {grid.scenario: grid for grid in fit}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SPACES, default=list(SPACES))
    parser.add_argument(
        "--sessions", type=int, default=5, help="live sessions of the tuner for each scenario"
    )
    parser.add_argument("--repeats", type=int, default=10, help="blocks of each point of the grid")
    parser.add_argument(
        "--budget", type=float, default=120.0, help="seconds that the tuner may take"
    )
    parser.add_argument(
        "--grids", type=Path, help="JSON lines: grids that are there are not measured again"
    )
    parser.add_argument(
        "--grids-only", action="store_true", help="measure the grids, and nothing against them"
    )
    parser.add_argument(
        "--rows", type=Path, help="JSON lines: sessions that are there are not run again"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the report under benchmarks/results"
    )
    args = parser.parse_args()
    if args.repeats < 2 * QUICK:
        parser.error(
            f"--repeats {args.repeats}: {2 * QUICK} or more are needed to tell luck from speed"
        )
    if args.sessions < 1:
        parser.error(f"--sessions {args.sessions}: one or more")
    grids, rows = read_grids(args.grids, args.repeats), read(args.rows, args.repeats, args.budget)
    lacking = [name for _ in range(args.sessions) for name in args.only]
    for name in args.only:
        for _ in rows.get(name, [])[: args.sessions]:
            lacking.remove(name)
    for name in dict.fromkeys(lacking):
        if name not in grids:
            grids[name] = asyncio.run(exhaustive(name, SPACES[name], args.repeats))
            print(
                f"{name}: {len(grids[name].points)} points, {grids[name].block_s:.2f} s a block",
                flush=True,
            )
            if args.grids:
                with args.grids.open("ab") as file:
                    file.write(msgspec.json.encode(grids[name]) + b"\n")
    if args.grids_only:
        return 0
    for name in lacking:
        done = rows.setdefault(name, [])
        done.append(
            asyncio.run(
                compare(
                    grids[name], SPACES[name], args.budget, done[0]["grid_best"] if done else None
                )
            )
        )
        if args.rows:
            with args.rows.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
        print(table({name: told(done, SPACES[name])}), flush=True)
    results = {name: told(found, SPACES[name]) for name, found in rows.items()}
    page = "\n\n".join([table(results), *map(curve, results, results.values())])
    print(page)
    if args.keep:
        kept = keep("tuning", {"results": results})
        kept.with_suffix(".svg").write_text(svg(page, "gpuconsole tune"), encoding="utf-8")
        print(f"kept in {kept}, with a picture beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
