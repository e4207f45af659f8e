"""Does the gate of `gpuconsole compare --fail-below` decide rightly? Real runs of a job: A/A pairs,
a job that is 5 % slower, and one that is too noisy.

    python -m benchmarks.gate [--keep]           about 15 minutes

- First the table of `benchmarks.gate.simulated`: unequal numbers of runs, unequally noisy sides.
- A/A: 40 runs of the same job, in the order A B B A. Twenty pairs of one run each, and 20
  comparisons of four with four runs: five groups of eight successive runs, each with four balanced
  orders of the labels.
- 5 % slower: five runs with and five without a wait of 1.2 ms more in steps of about 23 ms, in
  turn.
- Too noisy: three and three runs of which each waits for another time, up to 30 % more or less.

Each comparison is one call of the command, and its exit code counts. With --folder, runs that are
in the folder already are not measured again. Exit code 1: a row of the table has more than 1 in 40
regressions at the limit, more than one A/A comparison of either kind is called a regression, or the
other two answers are wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gate import simulated
from benchmarks.machine import keep

JOB = Path(__file__).parent / "job.py"
LIMIT = "0.97"
SECONDS = 5.5
WAIT_MS = 20.0
SLOWER_MS = 1.2
SPREAD = 0.3
ORDERS = ("ABBABAAB", "ABBAABBA", "ABABBABA", "BAABBAAB")
"""Orders of eight labels whose two sides have the same mean place, but for one place at most."""
OUTCOMES = {0: "no regression", 1: "regression", 3: "undecided"}


def measure(file: Path, *arguments: object) -> Path:
    """One run of the job, with its snapshot in `file`."""
    if not file.exists():
        command = [
            sys.executable,
            "-m",
            "gpuconsole",
            "run",
            "--headless",
            "--summary",
            "/dev/null",
            "--snapshot",
            str(file),
            "--",
        ]
        subprocess.run([*command, sys.executable, str(JOB), *map(str, arguments)], check=True)
    return file


def as_other(file: Path, digest: str) -> None:
    """Give the run in `file` the digest of another command: in CI both sides have the same command,
    here its arguments differ."""
    snapshot = json.loads(file.read_text())
    if snapshot["runs"][-1]["command_digest"] != digest:
        snapshot["runs"][-1]["command_digest"] = digest
        file.write_text(json.dumps(snapshot))


def compared(base: Sequence[Path], new: Sequence[Path]) -> dict[str, object]:
    """The outcome of the command for these runs."""
    with tempfile.TemporaryDirectory() as folder:
        for side, files in (("base", base), ("new", new)):
            (Path(folder) / side).mkdir()
            for number, file in enumerate(files):
                (Path(folder) / side / f"{number}.json").symlink_to(file.resolve())
        command = [
            sys.executable,
            "-m",
            "gpuconsole",
            "compare",
            f"{folder}/base",
            f"{folder}/new",
            "--fail-below",
            LIMIT,
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in OUTCOMES:
        raise SystemExit(done.stderr)
    gate = json.loads(done.stdout)
    rows = {figure["name"]: figure for figure in gate["figures"]}
    wall = rows["throughput"]["new"] / rows["throughput"]["base"]
    outcome = {
        "exit_code": done.returncode,
        "outcome": OUTCOMES[done.returncode],
        "wall_ratio": round(wall, 4),
        "needed": gate.get("needed", 0),
    }
    outcome["why"] = gate.get("why", "")
    assert gate["verdict"] == outcome["outcome"]
    return {
        **outcome,
        **{
            name: value if isinstance(value, (bool, list)) else round(value, 4)
            for name, value in gate["ratio"].items()
        },
    }


def table(title: str, rows: Sequence[dict[str, object]]) -> Counter[str]:
    counts = Counter(str(row["outcome"]) for row in rows)
    print(f"{title}: {dict(counts)}")
    for row in rows:
        print(
            f"  {row['outcome']:14} {row['estimate']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
            f"  wall {row['wall_ratio']:.3f}  {row['why']}"
        )
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the outcome to benchmarks/results/"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="keep the snapshots here, and continue where an earlier call ended",
    )
    parser.add_argument(
        "--times", type=int, default=4000, help="simulated comparisons of each row of the table"
    )
    args = parser.parse_args()
    rows = simulated.table(args.times)
    folder = args.folder or Path(tempfile.mkdtemp(prefix="gpuconsole-gate-"))
    folder.mkdir(parents=True, exist_ok=True)
    same = [measure(folder / f"same-{n:02}.json", SECONDS, WAIT_MS) for n in range(40)]
    turns = [("slower" if label == "B" else "base", n) for n, label in enumerate("ABBAABBAAB")]
    slower = [
        (
            side,
            measure(folder / f"{side}-{n}.json", SECONDS, WAIT_MS + SLOWER_MS * (side == "slower")),
        )
        for side, n in turns
    ]
    noisy = [measure(folder / f"noisy-{n}.json", SECONDS, WAIT_MS, SPREAD) for n in range(6)]
    ends = [file.stat().st_mtime for file in folder.glob("*.json")]
    seconds = max(ends) - min(ends)
    digest = json.loads(same[0].read_text())["runs"][-1]["command_digest"]
    for _, file in slower:
        as_other(file, digest)

    single = [compared([same[n + (n % 4 > 0)]], [same[n + (n % 4 == 0)]]) for n in range(0, 40, 2)]
    grouped = []
    for first in range(0, 40, 8):
        for order in ORDERS:
            sides = [
                [same[first + place] for place, label in enumerate(order) if label == of]
                for of in "AB"
            ]
            grouped.append(compared(*sides))
    sides = [[file for of, file in slower if of == side] for side in ("base", "slower")]
    less = compared(*sides)
    wild = compared(noisy[::2], noisy[1::2])

    alarms = [
        table("A/A, one run and one run", single)["regression"],
        table("A/A, four runs and four runs", grouped)["regression"],
    ]
    answers = [
        table("5 % slower, five runs and five runs", [less]),
        table("too noisy, three runs and three runs", [wild]),
    ]
    result = {
        "limit": float(LIMIT),
        "runs": len(same) + len(slower) + len(noisy),
        "seconds": round(seconds),
    }
    if args.keep:
        print(
            keep(
                "gate",
                {
                    **result,
                    "same_one_and_one": single,
                    "same_four_and_four": grouped,
                    "slower": less,
                    "noisy": wild,
                },
            )
        )
    wrong = max(alarms) > 1 or "regression" not in answers[0] or "undecided" not in answers[1]
    return int(wrong or bool(simulated.misses(rows, args.times)))


if __name__ == "__main__":
    sys.exit(main())
