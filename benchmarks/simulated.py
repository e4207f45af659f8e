"""What each training scenario shows on a simulated card: exit code, validity of the snapshot, sum
of the phases, top finding.

    python -m benchmarks.simulated [--card h100] [--duration 20] [--only NAME ...] [--slowdown 1]

Runs the real command line, headless, on a machine with simulated cards (tests/fakes/cuda), and
prints a Markdown table. A scenario with several processes gets as many cards. The figures are no
GPU data: kernels take the time that datasheets predict, and the host's speed is this machine's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import jsonschema

from benchmarks.headless import last_line, options, run_command
from gpuconsole.engine.catalog import scenarios
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.snapshot import json_schema
from tests.fakes.cuda.cards import CARDS
from tests.fakes.cuda.machine import SimulatedMachine

HEAD = (
    "| scenario | cards | exit | snapshot | phases | step | finding on top | taught |\n"
    "|---|---|---|---|---|---|---|---|"
)


MAX_CARDS = 2
"""Processes of a scenario with several processes: this machine has too few cores and too little
memory for eight."""
SMALLER: dict[str, Knobs] = {
    "tensor-parallel": {"tensor_parallel": 2, "n_layer": 4},
    "zero-memory": {"n_layer": 4},
}
"""Each process builds its model in host memory first; the whole models take 15 GB a process."""


def row(
    name: str, card: str, duration_s: float, taught: str, cards: int, slowdown: float
) -> tuple[str, bool]:
    """The table's row of one scenario, and whether its run is as it must be."""
    with tempfile.TemporaryDirectory() as folder:
        script = [*[f"card {card}"] * cards, "values none", f"slowdown {slowdown:g}"]
        with SimulatedMachine(Path(folder), script) as machine:
            changes = SMALLER.get(name, {}) | ({"nproc": cards} if cards > 1 else {})
            done = run_command(
                name, duration_s, *options("--set", changes), env=machine.environment()
            )
    try:
        raw = json.loads(done.stdout)
        jsonschema.validate(raw, json_schema())
        run = raw["runs"][-1]
    except (ValueError, LookupError, jsonschema.ValidationError) as error:
        reason = str(error).splitlines()[0]
        return (
            (
                f"| {name} | {cards} | {done.returncode} | {reason} | | | {last_line(done.stderr)}"
                f" | {taught} |"
            ),
            False,
        )
    summary = run.get("summary", {})
    phases = sum(summary.get("phases_ratio", {}).values())
    step_s = summary.get("step_time_s", {}).get("p50")
    top = next(
        (found["rule"] for found in run.get("findings", []) if found["state"] == "fires"), "-"
    )
    length = "" if step_s is None else f"{1e3 * step_s:.3g} ms"
    result = top if done.returncode == 0 else run.get("error") or last_line(done.stderr)
    text = (
        f"| {name} | {cards} | {done.returncode} | valid | {phases:.3f} | {length} | {result} |"
        f" {taught} |"
    )
    return text, done.returncode == 0 and abs(phases - 1) < 1e-6 and run["device"].startswith(
        "gpu:"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--card", choices=CARDS, default="h100")
    parser.add_argument("--duration", type=float, default=20.0)
    parser.add_argument(
        "--slowdown",
        type=float,
        default=1.0,
        help="every kernel and copy takes that many times as long",
    )
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    known = {name: one for name, one in scenarios()[0].items() if not one.workload.serves}
    print(HEAD, flush=True)
    right = True
    for name in args.only or known:
        cards = min(
            MAX_CARDS, int(known[name].knobs_for("gpu", CARDS[args.card].memory).get("nproc", 1))
        )
        text, as_expected = row(
            name, args.card, args.duration, known[name].teaches.rule or "-", cards, args.slowdown
        )
        right = right and as_expected
        print(text, flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
