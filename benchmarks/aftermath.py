"""Does a probe change the speed of a job?

    python -m benchmarks.aftermath [--probes NAME ...] [--device cpu] [--rounds 10] [--pairs 14]
        [--keep]

A round has two workers of the same workload. They alternate in blocks, like the two sides of a
trial. After half of the pairs, one worker runs the probes, three times each; then the other half of
the pairs follows. The result is the change of the ratio of the step times. Two processes differ by
a percent or two from their start, and they drift. Therefore there are many rounds with few blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys

from benchmarks.machine import keep
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.engine.children.pool import ignore
from gpuconsole.engine.children.worker import WorkerHandle
from gpuconsole.experiments.statistics import BlockPlan, rate, student
from gpuconsole.experiments.steps import Lengths, NextBlock
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device

SCENARIO = "train-gpt"
SMALL: Knobs = {"d_model": 128, "n_layer": 6, "batch_size": 2, "seq_len": 24}
"""Steps of about 10 ms: an aftereffect takes the largest share of short steps."""
PROBES = ("cached_batch", "memory_parts", "batch_elasticity", "op_mix", "swap_precision")
"""The probes that the diagnosis runs there."""
TIMES = 3
ARM = 1


async def started(knobs: Knobs, device: str) -> WorkerHandle:
    worker = WorkerHandle(ignore, lambda gone, code: None)
    await worker.launch()
    worker.start(find_scenario(SCENARIO).workload.name, knobs, Device(device, ""))
    await worker.next_steps()
    await worker.pause()
    return worker


async def block(worker: WorkerHandle, plan: BlockPlan, contention_free: bool) -> float:
    """Work per second. If `contention_free`, the time for which the training thread waited for a
    core is left out."""
    worker.trial_steps.clear()
    worker.resume(ARM)
    arriving = NextBlock(plan, Lengths(), ARM, 1.0)
    while (steps := arriving.counted(worker.trial_steps)) is None:
        await worker.next_steps()
    await worker.pause()
    return rate(steps, contention_free)


async def difference(
    probed: WorkerHandle, other: WorkerHandle, plan: BlockPlan, pairs: int, contention_free: bool
) -> float:
    """Log of the probed worker's step time over the other worker's: the mean of the pairs without
    the lowest and the highest fifth."""
    found = []
    for n in range(pairs):
        rates = {
            worker: await block(worker, plan, contention_free)
            for worker in ((probed, other) if n % 2 == 0 else (other, probed))
        }
        found.append(math.log(rates[other] / rates[probed]))
    left_out = pairs // 5
    return statistics.fmean(sorted(found)[left_out : pairs - left_out])


async def one_round(probes: list[str], pairs: int, device: str) -> float:
    knobs = {**find_scenario(SCENARIO).knobs_for(device.partition(":")[0]), **SMALL}
    plan = BlockPlan(knobs, (), {})
    probed, other = await started(knobs, device), await started(knobs, device)
    try:
        await difference(probed, other, plan, 4, device == "cpu")  # both are new
        before = await difference(probed, other, plan, pairs, device == "cpu")
        probed.resume(0)
        for name in probes * TIMES:
            await probed.probe(name)
        await probed.pause()
        return await difference(probed, other, plan, pairs, device == "cpu") - before
    finally:
        await probed.stop()
        await other.stop()


def interval(values: list[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean, half = (
        statistics.fmean(values),
        student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values)),
    )
    return mean - half, mean + half


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--probes",
        nargs="*",
        default=list(PROBES),
        help="none: what two workers drift apart by themselves",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=14, help="of blocks, before and after")
    parser.add_argument(
        "--keep", action="store_true", help="write the result under benchmarks/results"
    )
    args = parser.parse_args()
    changes = []
    for _ in range(args.rounds):
        changes.append(asyncio.run(one_round(args.probes, args.pairs, args.device)))
        print(f"{math.expm1(changes[-1]):+.1%}", end=" ", flush=True)
    mean, bounds = statistics.fmean(changes), interval(changes)
    within = f" [{bounds[0]:+.1%}, {bounds[1]:+.1%}]" if bounds else ""
    print(
        f"\nafter {', '.join(args.probes) or 'nothing'} steps take {mean:+.1%}{within},"
        f" {args.rounds} rounds"
    )
    if args.keep:
        result = {
            "scenario": SCENARIO,
            "device": args.device,
            "knobs": SMALL,
            "probes": args.probes,
            "log_changes": changes,
            "mean": mean,
            "interval": bounds,
        }
        print(f"kept in {keep('aftermath', result)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
