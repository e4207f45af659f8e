"""What does the agent cost a user's job? A step with the hooks minus a step without them, and the start of a Python that never imports torch.

    python -m benchmarks.own_job.overhead [--pairs 200] [--block 40] [--width 512] [--starts 25]

One process trains in blocks, with the hooks and without them in turn (`benchmarks/own_job/watched_loop.py`). The figures are medians of the pairs, with
95 % intervals by bootstrap. `--width` is the width of the model: 512 makes a step of a few ms on one core. Targets: 30 µs and 0.5 % of a step of
6 ms; 15 ms for a start. Exit code 1: a median misses its target.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.intervals import interval
from tests.agent.listener import Listener

STEP_US, STEP_RATIO, START_MS = 30.0, 0.005, 15.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="pairs of blocks")
    parser.add_argument("--block", type=int, default=40, help="steps in a block")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--starts", type=int, default=25, help="pairs of starts of Python")
    args = parser.parse_args()
    added_us, share = step_cost(args.pairs, args.block, args.width)
    start_ms = start_cost(args.starts)
    return 0 if added_us <= STEP_US and share <= STEP_RATIO and start_ms <= START_MS else 1


def step_cost(pairs: int, block: int, width: int) -> tuple[float, float]:
    """Microseconds that the hooks add to a step, and their share of the step; prints both, by the thread's CPU time and by the wall clock."""
    with tempfile.TemporaryDirectory() as folder:
        listener = Listener(Path(folder))
        words = ("-m", "benchmarks.own_job.watched_loop", str(pairs), str(block), str(width))
        done = listener.run(sys.executable, *words, cwd=Path.cwd(), timeout_s=1800.0)
    if done.returncode:
        sys.exit(done.stderr)
    found = json.loads(done.stdout)
    bare_ms = interval([without * 1e3 for _, _, _, without in found])[0]
    cpu = interval([(hooked - without) * 1e6 for hooked, _, without, _ in found])
    wall = interval([(hooked - without) * 1e6 for _, hooked, _, without in found])
    print(f"step without hooks   {bare_ms:6.2f} ms   (median of {len(found)} blocks of {block} steps)")
    print(f"added, CPU           {cpu[0]:+6.1f} µs/step  [{cpu[1]:+.1f}, {cpu[2]:+.1f}]   target {STEP_US:.0f}")
    print(
        f"added, wall clock    {wall[0]:+6.1f} µs/step  [{wall[1]:+.1f}, {wall[2]:+.1f}]   {cpu[0] / bare_ms / 10:.2f} % of the step by CPU, target 0.5"
    )
    return cpu[0], cpu[0] * 1e-3 / bare_ms


def start_cost(pairs: int) -> float:
    """Milliseconds of CPU that the agent adds to the start of a Python that does not import torch; printed."""
    with tempfile.TemporaryDirectory() as folder:
        listener = Listener(Path(folder))
        watched = listener.environment()
        added = []
        for _ in range(pairs):
            took = {name: _start(env) for name, env in (("watched", watched), ("alone", dict(os.environ)))}
            added.append((took["watched"] - took["alone"]) * 1e3)
        listener.close()
    middle, low, high = interval(added)
    print(f"start of Python      {middle:+6.1f} ms  [{low:+.1f}, {high:+.1f}]   wall clock, {pairs} pairs, target {START_MS:.0f}")
    return middle


def _start(env: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
