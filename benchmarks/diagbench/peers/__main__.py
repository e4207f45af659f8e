"""What do other diagnosis tools report for the training cases of the benchmark?

    python -m benchmarks.diagbench.peers --python PYTHON --tool traceml [--half reporting]
        [--seeds 5] [--only C07 ...] [--rows FILE] [--keep]

PYTHON is an interpreter that has the tool, torch, numpy, pillow and msgspec. Each case runs as a
plain script under the tool, on the CPU. The tool's file in this folder maps its words to our
families and causes. FILE keeps each row as soon as it exists: the same command continues after an
interruption, and --show applies a changed mapping to the rows. --keep writes the report to
benchmarks/results.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks.diagbench.cases import Case
from benchmarks.diagbench.peers import gpuprof, own_job, slowai, traceml, train_doctor
from benchmarks.diagbench.peers.peer import CASES, Peer
from benchmarks.diagbench.peers.run import PeerRow, diagnose, installed_version
from benchmarks.diagbench.peers.score import one_line, page, report
from benchmarks.machine import keep

PEERS = {
    peer.name: peer
    for peer in (
        *(adapter.PEER for adapter in (own_job, traceml, train_doctor, gpuprof, slowai)),
        own_job.PROBING,
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", help="the interpreter of the environment that has the tool")
    parser.add_argument("--tool", choices=PEERS, required=True)
    parser.add_argument("--half", choices=("tuning", "reporting"), default="reporting")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="ids or names of cases")
    parser.add_argument(
        "--seconds",
        type=float,
        default=12.0,
        help="how long a tool watches, from the first step on",
    )
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds after which a run is given up"
    )
    parser.add_argument(
        "--rows", type=Path, help="JSON lines: rows that are there are not run again"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the report under benchmarks/results"
    )
    parser.add_argument("--show", action="store_true", help="run nothing, report what the rows say")
    args = parser.parse_args()
    chosen = [
        case for case in CASES if not args.only or case.id in args.only or case.name in args.only
    ]
    if not chosen:
        parser.error(
            f"no such case; there are: {', '.join(f'{case.id} {case.name}' for case in CASES)}"
        )
    peer, seeds = PEERS[args.tool], range(args.first_seed, args.first_seed + args.seeds)
    rows = read(args.rows)
    if not args.show:
        if not args.python:
            parser.error("--python is needed to run anything")
        try:
            run(peer, args, [(case, seed) for seed in seeds for case in chosen], rows)
        except (OSError, subprocess.SubprocessError) as error:
            parser.error(f"{peer.package} cannot be used with {args.python}: {error}")
    ids = {case.id for case in chosen}
    mine = [
        row
        for row in rows
        if (row.tool, row.half) == (peer.name, args.half) and row.case in ids and row.seed in seeds
    ]
    figures = report(mine, peer)
    print(page(mine, peer, figures))
    if args.keep:
        meanings = {word: dataclasses.asdict(meaning) for word, meaning in peer.meanings.items()}
        kept = keep(
            f"diagbench-peers-{peer.name}-{args.half}",
            {"report": figures, "meanings": meanings, "rows": msgspec.to_builtins(mine)},
        )
        print(f"kept in {kept}")
    return 0


def run(
    peer: Peer, args: argparse.Namespace, wanted: list[tuple[Case, int]], rows: list[PeerRow]
) -> None:
    """Run the cases that `rows` lacks, one after the other, and add them."""
    # not resolved: a virtual environment's is a link, and known by its place
    python = str(Path(args.python).absolute())
    version = installed_version(python, peer.package)
    if version != peer.tested:
        print(
            (
                f"the mapping was made from {peer.package} {peer.tested}, this is {version}: look"
                " for unknown words"
            ),
            file=sys.stderr,
        )
    done = {row.key for row in rows}
    for case, seed in wanted:
        if (peer.name, case.id, args.half, seed) in done:
            continue
        row = diagnose(peer, version, python, case, args.half, seed, args.seconds, args.limit)
        rows.append(row)
        print(one_line(row, peer), flush=True)
        if args.rows:
            with args.rows.open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")


def read(path: Path | None) -> list[PeerRow]:
    if path is None or not path.exists():
        return []
    return [
        msgspec.json.decode(line, type=PeerRow)
        for line in path.read_bytes().splitlines()
        if line.strip()
    ]


if __name__ == "__main__":
    sys.exit(main())
