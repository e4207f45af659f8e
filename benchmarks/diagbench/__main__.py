"""Is the diagnosis right? Runs labelled workloads and compares what a user's console shows with the
label.

    python -m benchmarks.diagbench [--half reporting] [--seeds 5] [--neighbours 1]
        [--only C07 V02 ...] [--oracle-seeds 1] [--rows FILE]

Each case runs with new sizes for each seed. The benchmark compares the diagnosis with the known
cause. It tries the first suggestion (in the first --trial-seeds seeds), changes without effect
(--null-trials times), and every knob (in the first --oracle-seeds seeds), which checks the labels,
too. FILE keeps each row as soon as it exists: the same command continues after an interruption.
--keep writes the report to benchmarks/results.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from benchmarks.diagbench.beside import beside, peers
from benchmarks.diagbench.cases import TRAINING, Case
from benchmarks.diagbench.charts import families, gains
from benchmarks.diagbench.gpu_cases import GPU, GPU_SERVING
from benchmarks.diagbench.rows import Row
from benchmarks.diagbench.run import Trials, run_all
from benchmarks.diagbench.score import report
from benchmarks.diagbench.serving_cases import SERVING
from benchmarks.diagbench.text import one_line, page
from benchmarks.machine import has_features, keep
from benchmarks.pictures import svg

ALL = TRAINING + SERVING


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=("tuning", "reporting"), default="reporting")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--first-seed",
        type=int,
        default=0,
        help="after a rule was mended by what seeds showed, others must judge it",
    )
    parser.add_argument(
        "--neighbours",
        type=int,
        default=0,
        help="busy processes beside every run: the contention arm",
    )
    parser.add_argument("--device", default="cpu", help="cpu, or gpu:0 for the GPU cases")
    parser.add_argument("--only", nargs="*", help="ids or names of cases")
    parser.add_argument(
        "--oracle-seeds", type=int, default=0, help="for so many seeds of each case try every knob"
    )
    parser.add_argument(
        "--trial-seeds",
        type=int,
        help="for so many seeds of each case try the first suggestion; else for all",
    )
    parser.add_argument(
        "--null-trials",
        type=int,
        default=1,
        help="A/A trials in each run whose steps are quick enough",
    )
    parser.add_argument(
        "--rows", type=Path, help="JSON lines: rows that are there are not run again"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the report under benchmarks/results"
    )
    parser.add_argument("--name", default="", help="goes into the name of the file that is kept")
    parser.add_argument("--show", action="store_true", help="run nothing, report what the rows say")
    args = parser.parse_args()
    known = ALL if args.device == "cpu" else GPU + GPU_SERVING
    chosen = [
        case for case in known if not args.only or case.id in args.only or case.name in args.only
    ]
    if not chosen:
        parser.error(
            f"no such case; there are: {', '.join(f'{case.id} {case.name}' for case in known)}"
        )
    rows, seeds = read(args.rows), range(args.first_seed, args.first_seed + args.seeds)
    done = {row.key for row in rows}
    here = [case for case in chosen if has_features(case.needs)]
    todo = [
        (case, seed)
        for seed in seeds
        for case in here
        if (case.id, args.half, seed, args.neighbours) not in done
    ]
    if not args.show:
        asyncio.run(_run(todo, rows, args))
    ids = {case.id for case in chosen}
    mine = [
        row
        for row in rows
        if (row.half, row.neighbours) == (args.half, args.neighbours)
        and row.case in ids
        and row.seed in seeds
    ]
    figures = report(mine)
    table = (
        beside(mine, peers(args.half))
        if args.device == "cpu" and not args.only and not args.neighbours
        else ""
    )
    whole = "\n\n".join(filter(None, (page(mine, figures), table, families(mine), gains(mine))))
    print(whole)
    if args.keep:
        name = (
            f"diagbench-{args.half}"
            + ("" if args.device == "cpu" else "-gpu")
            + (f"-neighbours-{args.neighbours}" if args.neighbours else "")
            + (f"-{args.name}" if args.name else "")
        )
        kept = keep(name, {"report": figures, "rows": msgspec.to_builtins(mine)})
        kept.with_suffix(".svg").write_text(svg(whole, "DiagBench"), encoding="utf-8")
        print(f"kept in {kept}, with a picture beside it")
    return 0


async def _run(todo: list[tuple[Case, int]], rows: list[Row], args: argparse.Namespace) -> None:
    first = args.first_seed
    tried = range(first, first + (args.seeds if args.trial_seeds is None else args.trial_seeds))
    trials = Trials(tried, range(first, first + args.oracle_seeds), args.null_trials)
    async for row in run_all(todo, args.half, args.neighbours, trials, args.device):
        rows.append(row)
        print(one_line(row), flush=True)
        if args.rows:
            with args.rows.open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")


def read(path: Path | None) -> list[Row]:
    if path is None or not path.exists():
        return []
    return [
        msgspec.json.decode(line, type=Row)
        for line in path.read_bytes().splitlines()
        if line.strip()
    ]


if __name__ == "__main__":
    sys.exit(main())
