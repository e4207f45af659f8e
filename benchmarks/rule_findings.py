"""Findings of scenarios for the pages of the rules (docs/rule_examples.py), of rules that no case
of DiagBench is about.

    python -m benchmarks.rule_findings SCENARIO... [--duration 45] [--keep]

Runs the real command line, headless, and keeps each run in which the rule fires that the scenario
teaches, without its series.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.machine import keep
from gpuconsole.engine.catalog import scenarios

KEPT = (
    "id",
    "scenario",
    "workload",
    "knobs",
    "device",
    "state",
    "started",
    "duration_s",
    "steady_from_s",
    "unavailable",
    "facts",
    "findings",
)
"""What a page needs of a run. Of the summary it needs the time of a step."""


def run_with_finding(scenario: str, duration_s: float) -> dict[str, Any] | None:
    """The run, or None where the rule that the scenario teaches did not fire. Raises
    CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.json"
        command = [
            sys.executable,
            "-m",
            "gpuconsole",
            "run",
            scenario,
            "--headless",
            "--duration",
            str(duration_s),
            "--snapshot",
            str(path),
        ]
        subprocess.run(command, check=True, capture_output=True)
        run = msgspec.json.decode(path.read_bytes())["runs"][-1]
    return shortened(run, scenarios()[0][scenario].teaches.rule)


def shortened(run: dict[str, Any], rule: str) -> dict[str, Any] | None:
    """The parts of `run` that are KEPT, with the findings that fire; None where `rule` does not
    fire."""
    firing = [finding for finding in run.get("findings", []) if finding["state"] == "fires"]
    if rule not in [finding["rule"] for finding in firing]:
        return None
    summary = {name: run["summary"][name] for name in ("step_time_s",) if name in run["summary"]}
    signals = {
        name: run["signals"][name] for name in ("runq_ratio",) if name in run.get("signals", {})
    }
    return {
        **{name: run[name] for name in KEPT if name in run},
        "findings": firing,
        "summary": summary,
        "signals": signals,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="+", metavar="SCENARIO")
    parser.add_argument("--duration", type=float, default=45.0)
    parser.add_argument(
        "--keep", action="store_true", help="write the runs under benchmarks/results"
    )
    args = parser.parse_args()
    kept = []
    for name in args.scenarios:
        run = run_with_finding(name, args.duration)
        rules = "-" if run is None else ", ".join(finding["rule"] for finding in run["findings"])
        print(f"{name:<20} {rules}", flush=True)
        if run is not None:
            kept.append(run)
    if args.keep:
        print(keep("findings", {"runs": kept}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
