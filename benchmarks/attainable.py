"""Is the attainable rate right? Calibrates this machine and runs the scenarios that come near a
limit of the hardware, in turn.

    python -m benchmarks.attainable [--rounds 6] [--duration 8] [--budget 1] [--as-shipped]
        [--rows FILE] [--keep]

A round calibrates (in a cache of its own) and then runs each scenario with each of its settings.
The share is what the run reached over what its snapshot calls attainable. "Without this wait":
without the time in which the training thread waited for a core that other processes used. Machines
with other tenants change their speed by the minute, so a round is short, and medians over the
rounds count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.headless import RunError, options, session
from benchmarks.intervals import interval
from benchmarks.machine import keep
from gpuconsole.host.load import OtherCores
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.workloads.device import cores

Row = dict[str, float | str]


DISTURBED_RATIO = 0.05
"""A run is disturbed where its training thread waited for a core for a larger share of the time, or
where other processes used more of a core during the run or during the calibration of its round."""


def settings(as_shipped: bool) -> dict[str, tuple[Knobs, ...]]:
    """Each scenario with its settings: a thread on every core; with `as_shipped` also as it is
    shipped, which leaves one core free."""
    knobs = {
        "gemm-peak": "num_threads",
        "memory-bandwidth": "num_threads",
        "decode-one": "omp_num_threads",
    }
    return {name: (*([{}] if as_shipped else []), {knob: cores()}) for name, knob in knobs.items()}


def calibrate(cache: str, budget_s: float) -> float:
    """Keep a calibration in the folder `cache`. Returns the cores that other processes used
    meanwhile."""
    command = [
        sys.executable,
        "-m",
        "gpuconsole",
        "calibrate",
        "--device",
        "cpu",
        "--budget",
        f"{budget_s:g}",
        "--json",
    ]
    done = subprocess.run(
        ["env", f"XDG_CACHE_HOME={cache}", *command], check=True, capture_output=True
    )
    return float(json.loads(done.stdout).get("others_cores", 0.0))


def measure(name: str, knobs: Knobs, duration_s: float, cache: str) -> Row | None:
    """What one run reached, in the unit of its main rate. None: the run failed, or the attainable
    rate is not known; a line says why."""
    others = OtherCores()
    try:
        run = session(
            name,
            duration_s,
            *options("--set", knobs),
            "--device",
            "cpu",
            env={"XDG_CACHE_HOME": cache},
        ).runs[-1]
    except RunError as error:
        print(error)
        return None
    found = run.attainable
    if (
        found is None
        or found.main is None
        or found.main.reached_per_s is None
        or found.main.attainable_per_s is None
    ):
        print(f"{name}: {found.reason if found is not None else 'no attainable rate'}")
        return None
    busy = others.mean()
    parts = {part.name: part.time_s for part in found.parts}
    waited = parts.get("runq", 0.0) / sum(parts.values())
    share = found.main.reached_per_s / found.main.attainable_per_s
    return {
        "scenario": name,
        "settings": describe_changes(knobs) if knobs else "as shipped",
        "unit": found.main.unit,
        "reached_per_s": found.main.reached_per_s,
        "attainable_per_s": found.main.attainable_per_s,
        "share_ratio": share,
        "waited_ratio": waited,
        "others_cores": busy,
        "undisturbed_ratio": share / (1 - waited),
        "bound": found.bound or "",
        "source": found.source,
    }


def disturbed(row: Row) -> bool:
    """Whether other processes used the cores of the run or of its calibration."""
    return max(float(row["waited_ratio"]), float(row["others_cores"])) > DISTURBED_RATIO


def show(row: Row, file: Path | None) -> None:
    print(
        (
            f"{row['scenario']:18} {row['settings']:22} {row['reached_per_s']:8.4g} of"
            f" {row['attainable_per_s']:8.4g} {row['unit']:10} {row['share_ratio']:.2f}; waited"
            f" {row['waited_ratio']:.0%}, others {row['others_cores']:.2f}; {row['source']}"
        ),
        flush=True,
    )
    if file is not None:
        with file.open("a") as kept:
            kept.write(json.dumps(row) + "\n")


def table(rows: list[Row]) -> str:
    """A Markdown table of all rows: medians over the rounds, and the share with its 95 %
    interval."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[str(row["scenario"]), str(row["settings"]), str(row["unit"])].append(row)
    lines = [
        (
            "| scenario | settings | reached | attainable | reached over attainable | wait for a"
            " core | without this wait | runs |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for (scenario, how, unit), found in groups.items():
        reached, attainable, waited = (
            statistics.median(float(row[key]) for row in found)
            for key in ("reached_per_s", "attainable_per_s", "waited_ratio")
        )
        shares = [
            "{:.2f} [{:.2f}, {:.2f}]".format(*interval([float(row[key]) for row in found]))
            for key in ("share_ratio", "undisturbed_ratio")
        ]
        lines.append(
            f"| {scenario} | {how} | {reached:.3g} {unit} | {attainable:.3g} | {shares[0]} |"
            f" {waited:.0%} | {shares[1]} | {len(found)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--duration", type=float, default=8.0, help="seconds of each run")
    parser.add_argument(
        "--budget", type=float, default=1.0, help="seconds for each figure of the calibration"
    )
    parser.add_argument(
        "--as-shipped", action="store_true", help="also with the settings of the scenario files"
    )
    parser.add_argument(
        "--rows", type=Path, help="add the runs to this file, and report on all runs in it"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the result under benchmarks/results"
    )
    args = parser.parse_args()
    rows: list[Row] = (
        [json.loads(line) for line in args.rows.read_text().splitlines()]
        if args.rows and args.rows.exists()
        else []
    )
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(args.rounds):
            others = calibrate(cache, args.budget)
            for name, choices in settings(args.as_shipped).items():
                for knobs in choices:
                    row = measure(name, knobs, args.duration, cache)
                    if row is not None:
                        rows.append(
                            {**row, "others_cores": max(others, float(row["others_cores"]))}
                        )
                        show(rows[-1], args.rows)
    print(f"all {len(rows)} runs\n\n{table(rows)}\n")
    quiet = [row for row in rows if not disturbed(row)]
    print(
        f"the {len(quiet)} runs without disturbance, which the calibration of their round had not"
        f" either\n\n{table(quiet)}"
    )
    if args.keep:
        found = {"duration_s": args.duration, "budget_s": args.budget, "rows": rows}
        print(f"kept in {keep('attainable', found)}")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
