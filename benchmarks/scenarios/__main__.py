"""Is each scenario's default finding on top in every run, also next to a busy process?

    python -m benchmarks.scenarios [--runs 5] [--duration 30] [--neighbours 1] [--only NAME ...]
        [--keep --name NAME]

Runs the real command line, headless, and compares the top finding with the rule that the scenario
teaches.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import keep
from gpuconsole.engine.catalog import scenarios

NOTHING = "-"
"""No finding: a scenario with good settings teaches this."""


def burn() -> None:
    """One busy core."""
    while True:
        sum(range(100_000))


def one_run(scenario: str, duration: float) -> tuple[list[str], float]:
    """The rules that fire, best first, and the duration of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.json"
        begun = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "gpuconsole",
            "run",
            scenario,
            "--headless",
            "--duration",
            str(duration),
            "--snapshot",
            str(path),
        ]
        subprocess.run(command, check=True, capture_output=True)
        findings = json.loads(path.read_text())["runs"][-1].get("findings", [])
    return [f["rule"] for f in findings if f["state"] == "fires"], time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--duration", type=float, default=30.0)
    parser.add_argument("--neighbours", type=int, default=0, help="busy processes beside each run")
    parser.add_argument("--only", nargs="*")
    parser.add_argument(
        "--keep", action="store_true", help="write the result under benchmarks/results"
    )
    parser.add_argument(
        "--name",
        default="",
        help="with --keep: what tells this result's file from others, such as training",
    )
    args = parser.parse_args()
    taught = {name: scenario.teaches.rule or NOTHING for name, scenario in scenarios()[0].items()}
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(args.neighbours)]
    for burner in burners:
        burner.start()
    results = {}
    right = total = 0
    for name in args.only or taught:
        runs = [one_run(name, args.duration) for _ in range(args.runs)]
        # contention by others is no cause of this workload's own: with neighbours it may be told
        # beside the finding
        tops = [
            next((rule for rule in rules if rule != "host.cpu_contention"), NOTHING)
            for rules, _ in runs
        ]
        hits = sum(top == taught[name] for top in tops)
        right, total = right + hits, total + args.runs
        results[name] = {
            "taught": taught[name],
            "right": hits,
            "runs": [rules for rules, _ in runs],
        }
        print(
            f"{name:<18} {hits}/{args.runs}  {taught[name]:<28} "
            + " | ".join(",".join(rules) or "-" for rules, _ in runs),
            flush=True,
        )
    print(f"{right} of {total} right, {args.neighbours} busy neighbours")
    for burner in burners:
        burner.terminate()
    if args.keep:
        kept = keep(
            f"scenarios-neighbours-{args.neighbours}" + (f"-{args.name}" if args.name else ""),
            {"duration_s": args.duration, "neighbours": args.neighbours, "results": results},
        )
        print(f"kept in {kept}")
    return 0 if right == total else 1


if __name__ == "__main__":
    sys.exit(main())
