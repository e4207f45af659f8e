"""How many tokens per second does our training loop reach, compared with plain references of the
same model?

    python -m benchmarks.training --hf-python /tmp/hf/bin/python [--rounds 12] [--block 4]
        [--set NAME=VALUE]... [--keep]

Three contestants train the same GPT on the same batches from the same seed, at the same knobs: the
product's own worker, measured from outside by the messages that it sends to a console (account and
flushes included); a bare torch loop (bare.py); and transformers' Trainer with the flags that make
it fastest (hf_trainer.py), in an environment of its own:

    python -m venv /tmp/hf && /tmp/hf/bin/pip install torch==2.13.0 transformers accelerate msgspec

They alternate in blocks, in an order that rotates; each contestant pauses while another runs.
Compared are the steps of a round's blocks by wall clock, by time on a core (without the run-queue
delay of the training thread) and by CPU time of the whole process, as medians with 95 % intervals,
once for each precision. No contestant evaluates, logs or saves. Knobs that a reference does not
have (malloc_*) apply only to our loop. Exit code 1: our ratio is below 1.0 beyond the interval.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.intervals import interval
from benchmarks.machine import keep
from benchmarks.training import LOSS_AT
from benchmarks.training.contestants import Block, Contestant, Ours, Reference, measured_block
from gpuconsole.cli.scenario import assignments
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.model.knobs.catalogue import Knobs

QUIET: Knobs = {"eval_every": 0, "log_every": 0, "save_every": 0}
SAME_LOSS = 0.01
"""Losses of one step that differ by more than this share do not come from the same work: Trainer
decays no biases, sums round differently."""
OURS = "ours"
CLOCKS = {
    "wall": "wall clock",
    "contention_free": "time on a core",
    "cpu": "CPU time of the process",
}
"""Time on a core is wall clock without the training thread's run-queue delay."""


def contestants(knobs: Knobs, workload: str, hf_python: Path | None) -> dict[str, Contestant]:
    found: dict[str, Contestant] = {
        OURS: Ours(workload, knobs),
        "bare torch": Reference(sys.executable, "benchmarks.training.bare", knobs, seed=0),
    }
    if hf_python is not None:
        found["HF Trainer"] = Reference(
            str(hf_python), "benchmarks.training.hf_trainer", knobs, seed=0
        )
    return found


async def contest(
    field: dict[str, Contestant], rounds: int, seconds: float
) -> dict[str, list[Block]]:
    """Blocks of every contestant, one per round. The first round does not count."""
    blocks: dict[str, list[Block]] = {name: [] for name in field}
    orders = itertools.cycle(itertools.permutations(field))
    try:
        for one in field.values():
            await one.start()
        for round_, order in zip(range(rounds + 1), orders, strict=False):
            for name in order:
                block = await measured_block(field[name], seconds)
                if round_:
                    blocks[name].append(block)
    finally:
        for one in field.values():
            await one.stop()
    return blocks


def compare(blocks: dict[str, list[Block]], tokens_per_step: int) -> dict[str, Any]:
    """Ratios of our rate over each reference's, round by round, on each clock."""
    result: dict[str, Any] = {
        name: {
            "tokens_per_s": {
                clock: statistics.median(block.steps_per_s(clock) for block in made)
                * tokens_per_step
                for clock in CLOCKS
            },
            "faults_per_step": sum(block.faults for block in made)
            / sum(block.steps + 1 for block in made),
            "runq_ratio": sum(block.runq_s for block in made) / sum(block.wall_s for block in made),
            "loss": made[-1].loss,
            "threads": made[-1].threads,
            "blocks": [block._asdict() for block in made],
        }
        for name, made in blocks.items()
    }
    for name in blocks:
        if name != OURS:
            for clock in CLOCKS:
                pairs = zip(blocks[OURS], blocks[name], strict=True)
                result[name][f"ratio_{clock}"] = interval(
                    [ours.steps_per_s(clock) / theirs.steps_per_s(clock) for ours, theirs in pairs]
                )
    return result


def report(result: dict[str, Any], title: str) -> bool:
    """Whether no contestant is faster than ours beyond the interval, and all did the same work."""
    ours = result[OURS]
    print(title)
    fine = True
    for name, found in result.items():
        line = (
            f"  {name:<11} {found['tokens_per_s']['wall']:9,.0f} tokens/s   loss at step {LOSS_AT}"
            f" {found['loss']:.4f}"
        )
        line += (
            f"   waiting for a core {found['runq_ratio']:.1%}   {found['faults_per_step']:,.0f}"
            " page faults a step"
        )
        if name != OURS:
            for clock in CLOCKS:
                estimate, low, high = found[f"ratio_{clock}"]
                line += (
                    f"\n    ours/theirs by {CLOCKS[clock]:<22} {estimate:.4f} [{low:.4f},"
                    f" {high:.4f}]"
                )
                fine = fine and high >= 1.0
            if (
                abs(found["loss"] / ours["loss"] - 1) > SAME_LOSS
                or found["threads"] != ours["threads"]
            ):
                print(f"  {name}: another loss or other threads than ours: not the same work")
                fine = False
        print(line, flush=True)
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=12,
        help="a multiple of 6 puts everyone equally often in every place",
    )
    parser.add_argument("--block", type=float, default=4.0, help="seconds")
    parser.add_argument("--precision", nargs="*", default=["fp32", "bf16"])
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="knobs",
        help="for all of them",
    )
    parser.add_argument(
        "--hf-python",
        type=Path,
        help="python of the environment with transformers; without it Trainer is left out",
    )
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    scenario = find_scenario("train-gpt")
    knobs = {**scenario.knobs_for("cpu"), **QUIET, **assignments(args.knobs, scenario)}
    results, fine = {}, True
    for precision in args.precision:
        at = {**knobs, "precision": precision}
        blocks = asyncio.run(
            contest(
                contestants(at, scenario.workload.name, args.hf_python), args.rounds, args.block
            )
        )
        result = compare(blocks, int(at["batch_size"]) * int(at["seq_len"]))
        threads = result[OURS]["threads"]
        title = (
            f"{precision}, batch_size {at['batch_size']}, seq_len {at['seq_len']}, {threads}"
            f" threads, {args.rounds} rounds of {args.block:g} s blocks"
        )
        fine = report(result, title) and fine
        results[precision] = {"knobs": at, "contestants": result}
    if args.hf_python is None:
        print("HF Trainer left out: no --hf-python")
    if args.keep:
        found = {"rounds": args.rounds, "block_s": args.block, "results": results}
        print(f"kept in {keep('training', found)}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
