"""CPU, memory and output of gpuconsole compared with other GPU monitors: one fake driver with
moving values, 1 s refresh, 120x40, in a pty.

    python -m benchmarks.console_cost [--gpus 1 8 64] [--seconds 10] [--repeats 3] [--settle 4]
        [--only NAME...] [--former CHECKOUT] [--keep]
    python -m benchmarks.console_cost --install FOLDER [--only NAME...]

Every round runs each program once, so that drift affects all programs. Measured for each program:
CPU share of one core (all its processes), bytes per second to the terminal, seconds to the first
figure of a GPU (of other programs: to the first frame with a GPU), memory, driver calls per second,
seconds to quit on `q` (gpustat: Ctrl-C).
gpuconsole only watches; its spare worker for a first run is reported separately. The time of the
fake driver counts for the program that calls it. Programs that are not installed are left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.console_cost.install import install_debian, install_python
from benchmarks.console_cost.measure import SETTLE_S, Died, Job, Row, measure
from benchmarks.console_cost.peers import FORMER, NAMES, OWN, OWN_FIGURE, PEERS
from benchmarks.console_cost.targets import judge
from benchmarks.fake_box import FakeBox, build_driver
from benchmarks.machine import keep
from benchmarks.own_program import own_command

PEERS_FOLDER = Path.home() / ".cache" / "gpuconsole-peers"
COLUMNS = (
    ("cpu_percent", "CPU %", "{:.1f}"),
    ("bytes_per_s", "B/s", "{:.0f}"),
    ("first_figure_s", "first figure s", "{:.2f}"),
    ("first_figure_cpu_s", "CPU s until then", "{:.2f}"),
    ("tree_rss_mb", "RSS MB", "{:.0f}"),
    ("tree_pss_mb", "PSS MB", "{:.0f}"),
    ("calls_per_s", "NVML calls/s", "{:.0f}"),
    ("quits_in_s", "quits in s", "{:.2f}"),
)
PARTS = ("console", "sampler", "worker")


def install(folder: Path, names: Sequence[str]) -> None:
    chosen = [peer for peer in PEERS if peer.name in names]
    folder.mkdir(parents=True, exist_ok=True)
    for peer in chosen:
        if peer.by_pip:
            install_python(folder, peer.name, peer.package)
    if packages := [peer.package for peer in chosen if not peer.by_pip]:
        install_debian(folder, packages)


def jobs(names: Sequence[str], folder: Path, driver: Path, former: Path | None) -> list[Job]:
    """The programs to measure. Prints the programs that are missing."""
    checkouts = {OWN: Path.cwd(), FORMER: former}
    found = [
        Job(name, own_command(), checkout=checkout, figure=OWN_FIGURE)
        for name, checkout in checkouts.items()
        if name in names and checkout
    ]
    for peer in PEERS:
        command = peer.command(folder, driver) if peer.name in names else None
        if command is not None:
            found.append(Job(peer.name, command, peer.shows, peer.quits_on))
        elif peer.name in names:
            print(
                f"{peer.name} is missing: python -m benchmarks.console_cost --install {folder}"
                f" --only {peer.name}, or {peer.how}"
            )
    return found


def spread(rows: Sequence[Row], column: str, form: str) -> str:
    values = [row[column] for row in rows if column in row]
    if not values:
        return "-"
    shown = [form.format(v) for v in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} [{shown[1]} {shown[2]}]"


def print_table(
    gpus: int, results: dict[tuple[str, int], list[Row]], died: dict[tuple[str, int], str]
) -> None:
    print(f"\n{gpus} GPU{'s' * (gpus > 1)}: median [least most]")
    print(f"{'':<16}" + "".join(f"{title:>21}" for _, title, _ in COLUMNS))
    for name in NAMES:
        rows = results.get((name, gpus), [])
        if rows:
            print(
                f"{name:<16}"
                + "".join(f"{spread(rows, column, form):>21}" for column, _, form in COLUMNS)
            )
        if (name, gpus) in died:
            print(f"{name:<16}  {died[name, gpus]}")
        if name in (OWN, FORMER) and rows:
            for part in PARTS:
                label = f"  {part}" if part != "worker" else "  idle worker *"
                cells = {
                    "cpu_percent": (f"{part}_cpu_percent", "{:.2f}"),
                    "tree_rss_mb": (f"{part}_rss_mb", "{:.0f}"),
                }
                print(
                    f"{label:<16}"
                    + "".join(
                        f"{spread(rows, *cells[c]) if c in cells else '':>21}"
                        for c, _, _ in COLUMNS
                    )
                )
    if results.get((OWN, gpus)):
        print("* kept ready with torch loaded, no workload runs: not in gpuconsole's line")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--settle",
        type=float,
        default=SETTLE_S,
        metavar="SECONDS",
        help="wait before the measurement; with 120 the histories are full",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=NAMES,
        default=NAMES,
        metavar="NAME",
        help=f"of {', '.join(NAMES)}",
    )
    parser.add_argument(
        "--peers",
        type=Path,
        default=PEERS_FOLDER,
        metavar="FOLDER",
        help=f"where peers are installed ({PEERS_FOLDER})",
    )
    parser.add_argument(
        "--former",
        type=Path,
        metavar="FOLDER",
        help="a checkout of an earlier gpuconsole, measured as `former`",
    )
    parser.add_argument(
        "--install", type=Path, metavar="FOLDER", help="install the peers there and end"
    )
    parser.add_argument(
        "--pictures",
        type=Path,
        metavar="FOLDER",
        help="write the last screen of each program there",
    )
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    if args.install is not None:
        install(args.install.absolute(), args.only)
        return 0
    if args.pictures is not None:
        args.pictures.mkdir(parents=True, exist_ok=True)
    results: dict[tuple[str, int], list[Row]] = {}
    died: dict[tuple[str, int], str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = build_driver(folder / "driver")
        found = jobs(
            args.only, args.peers.absolute(), driver, args.former and args.former.absolute()
        )
        for turn in range(args.repeats):
            for gpus in args.gpus:
                with FakeBox(folder / f"box-{gpus}-{turn}", driver, gpus) as box:
                    for job in found[turn % len(found) :] + found[: turn % len(found)]:
                        picture = (
                            args.pictures / f"{job.name}-{gpus}.txt" if args.pictures else None
                        )
                        try:
                            row = measure(
                                job,
                                box,
                                folder / f"{job.name}-{gpus}-{turn}",
                                args.seconds,
                                args.settle,
                                picture,
                            )
                        except Died as why:
                            died[job.name, gpus] = str(why)
                        else:
                            results.setdefault((job.name, gpus), []).append(row)
                            print(
                                (
                                    f"round {turn + 1}, {gpus} GPUs, {job.name}:"
                                    f" {row['cpu_percent']:.1f} %"
                                ),
                                file=sys.stderr,
                                flush=True,
                            )
    for gpus in args.gpus:
        print_table(gpus, results, died)
    verdicts = judge(results)
    print("\nTargets", *verdicts, sep="\n")
    if args.keep:
        runs = [
            {"program": name, "gpus": gpus, "runs": rows} for (name, gpus), rows in results.items()
        ]
        ends = [{"program": name, "gpus": gpus, "why": why} for (name, gpus), why in died.items()]
        cost = {
            "seconds": args.seconds,
            "settled_s": args.settle,
            "programs": runs,
            "died": ends,
            "targets": verdicts,
        }
        print(f"kept in {keep('console-cost', cost)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
