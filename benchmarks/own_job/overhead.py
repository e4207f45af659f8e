"""What does the agent cost a user's job? A step with the hooks minus a step without them, and the
start of a Python that never imports torch.

    python -m benchmarks.own_job.overhead [--pairs 4000] [--width 512] [--batch 96] [--starts 25]
        [--threads 0] [--card h100]
        [--watch]

One process trains (`benchmarks/own_job/watched_loop.py`). Two parts make the cost of a step. The
hooks: blocks of 20 steps with and without them in turn, in random order; a pair's difference is
that of the thread's CPU time. The work between steps (messages, commands, readings), which happens
by the clock: its CPU time over the steps of an uninterrupted run, at the low rate that begins 20 s
after the start or the last command. The figures are medians with 95 % intervals by bootstrap.
`--width` and `--batch` set the size of a step: the usual ones make about 6 ms on one core. Targets:
30 µs and 0.5 % of a step of 6 ms; 15 ms for a start. Exit code 1: a median misses its target.
`--card`: the loop runs on a simulated card (tests/fakes/cuda), so that the agent's code for GPUs
runs: the CPU time is that of the host. `--watch`: then the same for a process that watches itself
by `gpuconsole.watch()`, with a real console beside it. Its steps must keep the targets too.
`--threads`: further threads that wait in the process, whose stacks the sampler may read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.intervals import interval
from tests.agent.listener import Listener
from tests.fakes.cuda.cards import CARDS
from tests.fakes.cuda.machine import SimulatedMachine

STEP_US, STEP_RATIO, START_MS = 30.0, 0.005, 15.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=4000, help="pairs of steps")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--starts", type=int, default=25, help="pairs of starts of Python")
    parser.add_argument(
        "--threads", type=int, default=0, help="further threads of the program, which wait"
    )
    parser.add_argument("--card", choices=CARDS, help="run on a simulated card")
    parser.add_argument(
        "--watch", action="store_true", help="also in a process that watches itself"
    )
    args = parser.parse_args()
    costs = []
    for how in ("run", "watch") if args.watch else ("run",):
        print(f"--- the agent is started by {how}")
        costs.append(step_cost(args.pairs, args.width, args.batch, args.card, how, args.threads))
    start_ms = start_cost(args.starts)
    return (
        0
        if all(added_us <= STEP_US and share <= STEP_RATIO for added_us, share in costs)
        and start_ms <= START_MS
        else 1
    )


def step_cost(
    pairs: int, width: int, batch: int, card: str | None, how: str = "run", threads: int = 0
) -> tuple[float, float]:
    """Microseconds of CPU that the agent adds to a step, and their share of the step; printed.
    `card`: a simulated card; None: the CPU. `how`: who starts the agent, see `watched_loop`."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        environment = {}
        if card is not None:
            machine = stack.enter_context(
                SimulatedMachine(Path(folder) / "machine", [f"card {card}", "values none"])
            )
            environment = machine.environment()
        listener = Listener(Path(folder))
        words = (
            "-m",
            "benchmarks.own_job.watched_loop",
            str(pairs),
            str(width),
            str(batch),
            "cuda" if card else "cpu",
            how,
            str(threads),
        )
        if how == "run":
            done = listener.run(
                sys.executable, *words, environment=environment, cwd=Path.cwd(), timeout_s=1800.0
            )
        else:
            listener.close()
            env = {**os.environ, **environment}
            done = subprocess.run(
                [sys.executable, *words],
                env=env,
                capture_output=True,
                text=True,
                check=False,
                timeout=1800.0,
            )
    if done.returncode:
        sys.exit(done.stderr)
    measured = json.loads(done.stdout)
    bare_ms = interval([seconds * 1e3 for seconds in measured["plain_s"]])[0]
    hooks, low, high = interval([seconds * 1e6 for seconds in measured["added_s"]])
    work = measured["work_s"] * 1e6
    added = hooks + work
    print(f"step without hooks   {bare_ms:6.2f} ms   (median of {pairs} pairs of steps)")
    print(f"hooks                {hooks:+6.1f} µs/step  [{low:+.1f}, {high:+.1f}]")
    print(
        f"work between steps   {work:+6.1f} µs/step   ({measured['new_work_s'] * 1e6:+.1f} in the"
        " first 20 s)"
    )
    print(
        f"together             {added:+6.1f} µs/step  [{low + work:+.1f}, {high + work:+.1f}]"
        f"   target {STEP_US:.0f}"
    )
    low, fast = (100 * measured[name] for name in ("sampler_ratio", "fast_sampler_ratio"))
    print(
        f"sampling of stacks   {low:6.2f} % of a core, in a thread of its own, target 0.5;"
        f" {fast:.2f} % at the fast rate"
    )
    print(f"                     {added / bare_ms / 10:6.2f} % of the step   target 0.5 at 6 ms")
    return added, added * 1e-3 / bare_ms


def start_cost(pairs: int) -> float:
    """Milliseconds of CPU that the agent adds to the start of a Python that does not import torch;
    printed."""
    with tempfile.TemporaryDirectory() as folder:
        listener = Listener(Path(folder))
        watched = listener.environment()
        added = []
        for _ in range(pairs):
            took = {
                name: _start(env)
                for name, env in (("watched", watched), ("alone", dict(os.environ)))
            }
            added.append((took["watched"] - took["alone"]) * 1e3)
        listener.close()
    middle, low, high = interval(added)
    print(
        f"start of Python      {middle:+6.1f} ms  [{low:+.1f}, {high:+.1f}]   wall clock, {pairs}"
        f" pairs, target {START_MS:.0f}"
    )
    return middle


def _start(env: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
