"""How well does the agent's account of a user's loop agree with stamps by hand?

    python -m benchmarks.own_job.truth [--steps 200] [--rounds 3] [--only LOOP ...] [--python PATH]

Runs 54 plain loops, and loops of HF Trainer, Lightning and accelerate where they are installed
(tests/agent/programs), under the agent. Prints for each loop the phase that differs most, in points
of the step, in the median round. The number of steps must agree exactly, and losses and weights
must be bit for bit those of a run without the agent, and what the loop prints must be the same.
Exit code 1: a phase differs by more than 2 points, or losses, weights or output differ. `--python`:
the Python of the loops, which has another version, or another version of torch.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.agent.truth import (
    BY_SAMPLES,
    FRAMEWORKS,
    LOOPS,
    PARTS,
    PROGRAMS,
    RIGHT_AT_ONCE,
    UNUSUAL,
    UNUSUAL_TOO,
    alone,
    differences,
    digests,
    watched,
)

POINTS = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    every = [*LOOPS, *UNUSUAL, *UNUSUAL_TOO, *PARTS, *RIGHT_AT_ONCE, *FRAMEWORKS]
    parser.add_argument(
        "--only",
        nargs="*",
        choices=every,
        metavar="LOOP",
        help=f"names of loops: {', '.join(every)}",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the Python of the loops; it needs torch only"
    )
    args = parser.parse_args()
    names = args.only or every
    wrong = 0
    for name in names:
        if name in FRAMEWORKS and not has(args.python, FRAMEWORKS[name]):
            print(f"{name:<16} not run: {FRAMEWORKS[name]} is not installed")
            continue
        wrong += not agrees(
            name, args.steps * (4 if name in BY_SAMPLES else 1), args.rounds, args.python
        )
    return 1 if wrong else 0


def has(python: str, module: str) -> bool:
    """Whether a Python has a module."""
    return not subprocess.run(
        [python, "-c", f"import {module}"], capture_output=True, check=False
    ).returncode


def agrees(name: str, steps: int, rounds: int, python: str) -> bool:
    """Whether the account of one loop is within the limit; prints its line."""
    program = "frameworks.py" if name in FRAMEWORKS else "unusual.py"
    command = (
        str(PROGRAMS / program),
        *(() if name in FRAMEWORKS else ("fork",)),
        *((name, str(steps)) if name in FRAMEWORKS else (str(steps), name)),
    )
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            own = Path(folder) / str(number)
            own.mkdir()
            ran = watched(own, *command, python=python)
            found += [differences(ran, loop) for loop in ran.stamps]
        expected = alone(own, *command, python=python)
    same = sorted(digests(ran.out)) == sorted(digests(expected))
    printed = sorted(without_times(ran.out)) == sorted(without_times(expected))
    medians = {phase: statistics.median(one[phase] for one in found) for phase in found[0]}
    worst = max(medians, key=lambda phase: abs(medians[phase]))
    good = abs(medians[worst]) <= POINTS and same and printed
    words = (
        f"{'losses and weights are the same' if same else 'LOSSES OR WEIGHTS DIFFER'},"
        f" {'output too' if printed else 'OUTPUT DIFFERS'}"
    )
    print(
        (
            f"{name:<16} {steps} steps   {worst} {medians[worst] * 100:+.1f} points"
            f"   {words}{'' if good else '   MISSED'}"
        ),
        flush=True,
    )
    return good


def without_times(out: str) -> list[str]:
    """The lines of the output of a loop. Trainers print how long they took: these figures differ
    between any two runs."""
    return [
        re.sub(r"('?\w*(?:runtime|per_second)'?: )[^,}]*", r"\1", line)
        for line in re.split(r"[\r\n]+", out)
        if not re.search(r"\d(?:it/s|s/it)", line)
    ]


if __name__ == "__main__":
    sys.exit(main())
