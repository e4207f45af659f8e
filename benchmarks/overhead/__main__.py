"""How much does measuring slow the workload down? The same training loop bare and under the
console, in one process, in ABBA blocks.

    python -m benchmarks.overhead [--pairs 150] [--block-steps 80] [--new] [--keep]

Bare: the loop with an account that does nothing, and nothing is sent. Under the console: the real
step breakdown, the real flush over a socket to a process that decodes it and keeps the session.
Compared are the training thread's CPU time per step (less sensitive to other processes) and steps
per second of wall time, pair by pair, with 95 % intervals of the median.

A run without changes sends a message every 0.5 s. `--new` measures a run in its first 20 s, or in
the 20 s after a change, which sends twice as many messages and reads run-queue time twice as often
(use blocks of 40 steps).

Blocks of the same loop differ by some percent on a shared machine. So the console's own work is
also timed directly: the account's calls and the flush between real steps, with cold caches, minus
what the same clock reads around calls that do nothing. The effect on the steps themselves (lost
cache lines) is visible only in the blocks.
"""

from __future__ import annotations

import argparse
import math
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.intervals import interval
from benchmarks.machine import keep
from gpuconsole.agent.clock import ThreadTimes, now
from gpuconsole.agent.service import Inbox, Service
from gpuconsole.agent.step_breakdown import Moment, StepBreakdown
from gpuconsole.agent.world import World
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.wire.channel import ChildChannel
from gpuconsole.workloads.training import gpt
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.worker import make_service

TARGET_RATIO = 0.995
"""At steps of 6 ms: 30 µs."""
OWN_BLOCKS = 40


class NoAccount(StepBreakdown):
    """Keeps only the step counter that the loop needs."""

    def mark(self, phase: int, at: Moment | None = None) -> None:
        pass

    def end(self, samples: int, tokens: int, loss: float | None, arm: int, kind: int) -> None:
        self._index += 1

    def _begin(self, start: float) -> None:
        pass


def block(
    loop: TrainingLoop, service: Service | None, inbox: Inbox, steps: int
) -> tuple[float, float]:
    """CPU seconds per step and steps per second of one block, without its first step.

    Under the console a block ends with a flush; 80 steps of 6 ms take the 0.5 s after which the
    worker of a run without changes sends.
    """
    loop.step()
    cpu, start = time.thread_time(), time.perf_counter()
    for _ in range(steps):
        if service is not None:
            inbox.poll()
        loop.step()
    if service is not None:
        service.reporter.send()
    return (time.thread_time() - cpu) / steps, steps / (time.perf_counter() - start)


class Timed(StepBreakdown):
    """Passes each call on to another account and adds up the time that it takes."""

    def __init__(self, inner: StepBreakdown) -> None:
        self._inner = inner
        self.seconds = 0.0

    @property
    def index(self) -> int:
        return self._inner.index

    def mark(self, phase: int, at: Moment | None = None) -> None:
        start = time.perf_counter()
        self._inner.mark(phase, at)
        self.seconds += time.perf_counter() - start

    def end(self, samples: int, tokens: int, loss: float | None, arm: int, kind: int) -> None:
        start = time.perf_counter()
        self._inner.end(samples, tokens, loss, arm, kind)
        self.seconds += time.perf_counter() - start


def own_us(
    loop: TrainingLoop, service: Service, account: StepBreakdown, nothing: StepBreakdown, steps: int
) -> tuple[float, float, float]:
    """Microseconds per step of the console's own work between real steps: the account, the flush,
    and a whole bare step."""
    shares: dict[bool, list[float]] = {False: [], True: []}
    flushes, bare = [], []
    for number in range(2 * OWN_BLOCKS):
        console = number % 2 == 1
        timed = Timed(account if console else nothing)
        loop.breakdown = timed
        account._begin(now())
        start = time.perf_counter()
        for _ in range(steps):
            loop.step()
        shares[console].append(timed.seconds / steps)
        if console:
            loop.breakdown = account
            start = time.perf_counter()
            service.reporter.send()
            flushes.append((time.perf_counter() - start) / steps)
        else:
            bare.append((time.perf_counter() - start - timed.seconds) / steps)
    accounted = statistics.fmean(shares[True]) - statistics.fmean(shares[False])
    return accounted * 1e6, statistics.fmean(flushes) * 1e6, statistics.median(bare) * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--block-steps", type=int, default=80)
    parser.add_argument("--new", action="store_true", help="as a run's first 20 s are watched")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    knobs = {
        **find_scenario("train-gpt").knobs_for("cpu"),
        "batch_size": 1,
        "seq_len": 8,
        "num_threads": 1,
        "eval_every": 0,
    }
    ours, theirs = socket.socketpair()
    listener = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.overhead.listener", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    with tempfile.TemporaryDirectory() as scratch:
        loop = TrainingLoop(
            gpt.create(knobs, torch.device("cpu"), 0), knobs, torch.device("cpu"), Path(scratch)
        )
        inbox = Inbox()
        service = make_service(ChildChannel(ours.detach()), inbox, loop, 0, World())
        accounts = {False: NoAccount(ThreadTimes()), True: loop.breakdown}
        service.reporter.active_since = math.inf if args.new else -math.inf
        service.reporter.send()
        costs, ratios, bare_steps = [], [], []
        for pair in range(args.pairs + 2):
            measured = {}
            for console in (False, True) if pair % 2 == 0 else (True, False):
                loop.breakdown = accounts[console]
                # the same run goes on: `restart` would have it sampled sooner
                loop.breakdown._begin(now())
                measured[console] = block(
                    loop, service if console else None, inbox, args.block_steps
                )
            if pair >= 2:
                costs.append((measured[True][0] - measured[False][0]) * 1e6)
                ratios.append(measured[True][1] / measured[False][1])
                bare_steps.append(1e3 / measured[False][1])
        own = own_us(loop, service, accounts[True], accounts[False], args.block_steps)
        loop.close()
    listener.kill()
    cost, ratio = interval(costs), interval(ratios)
    print(
        f"bare step                  {statistics.median(bare_steps):7.2f} ms   (median of"
        f" {args.pairs} pairs of {args.block_steps}-step blocks)"
    )
    share = 1 - (own[0] + own[1]) / (own[2] + own[0] + own[1])
    print(
        f"own work, timed in place   {own[0] + own[1]:7.1f} µs/step  (account {own[0]:.1f}, flush"
        f" {own[1]:.1f}): {share:.4f} of bare steps/s"
    )
    print(f"CPU of the training thread {cost[0]:+7.1f} µs/step  [{cost[1]:+.1f}, {cost[2]:+.1f}]")
    print(
        f"steps/s, console / bare    {ratio[0]:7.4f}          [{ratio[1]:.4f}, {ratio[2]:.4f}]"
        f"   target >= {TARGET_RATIO}"
    )
    if args.keep:
        result = {
            "bare_step_ms": statistics.median(bare_steps),
            "cpu_us_per_step": cost,
            "steps_ratio": ratio,
            "pairs": args.pairs,
            "new": args.new,
        }
        result |= {
            "own_us_per_step": own[0] + own[1],
            "own_account_us": own[0],
            "own_flush_us": own[1],
            "own_ratio": share,
        }
        print(f"kept in {keep('overhead', result)}")
    return 0 if min(share, ratio[0]) >= TARGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
