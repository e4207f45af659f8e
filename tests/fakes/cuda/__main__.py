"""Run a program on a machine with simulated cards: `python -m tests.fakes.cuda --cards h100 --
gpuconsole run train-gpt --headless --duration 20`.

The program's figures are no GPU data: every device that it shows is called "simulated".
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fakes.cuda.build import NotHereError
from tests.fakes.cuda.cards import CARDS
from tests.fakes.cuda.machine import SimulatedMachine


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fakes.cuda",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--cards", default="h100", help=f"comma-separated: {', '.join(CARDS)} (default: h100)"
    )
    parser.add_argument(
        "--values",
        choices=("none", "cpu"),
        default="none",
        help="none: shapes only, every value reads 0; cpu: the CPU computes",
    )
    parser.add_argument(
        "--slowdown",
        type=float,
        default=1.0,
        help="every kernel and copy takes that many times as long",
    )
    parser.add_argument(
        "--script",
        type=Path,
        help="a machine as a text script (see tests/fakes/cuda/cards.py), in place of the options",
    )
    parser.add_argument("command", nargs="+", help="the program, after --")
    args = parser.parse_args()
    lines = [
        *(f"card {name}" for name in args.cards.split(",")),
        f"values {args.values}",
        f"slowdown {args.slowdown}",
    ]
    if args.script is not None:
        lines = args.script.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        try:
            machine = SimulatedMachine(Path(folder), lines)
        except (NotHereError, ValueError) as error:
            print(error, file=sys.stderr)
            return 2
        with machine:
            command = (
                args.command
                if args.command[0] != "gpuconsole"
                else [sys.executable, "-m", *args.command]
            )
            return subprocess.run(command, env=machine.environment(), check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
