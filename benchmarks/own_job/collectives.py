"""What does torch's record of collectives cost, and what does a read of it by the agent cost?

    python -m benchmarks.own_job.collectives [--pairs 8] [--calls 3000]

Two processes over gloo all-reduce one number. The record is on (TORCH_FR_BUFFER_SIZE=2000, torch's
default) and off (0) in turn, a pair of jobs each, because torch reads the variable once in a
process: the ratio of the CPU time of a call on the calling thread. The agent changes nothing of it.
Then, where the record is full, the CPU time of a read (`_loaded`,
agent/hooks/evidence/collectives.py), and that of the read over the seconds to the next one. Medians
with 95 % intervals by bootstrap.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from benchmarks.intervals import interval

READS = 30


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--calls", type=int, default=3000)
    args = parser.parse_args()
    pairs = [(job(2000, args.calls), job(0, args.calls)) for _ in range(args.pairs)]
    ratios = [on["call_s"] / off["call_s"] for on, off in pairs]
    more_us = [1e6 * (on["call_s"] - off["call_s"]) for on, off in pairs]
    reads_ms = [1e3 * seconds for on, _ in pairs for seconds in on["reads_s"]]
    print(f"a call with the record over one without: {shown(ratios)}; {shown(more_us)} µs more")
    print(
        f"a read of 2000 entries: {shown(reads_ms)} ms of CPU time, the longest {max(reads_ms):.1f}"
        " ms"
    )
    shares = [1e-3 * read / apart_s(1e-3 * read) for read in reads_ms]
    print(f"reads over the time between them: {shown([100 * share for share in shares])} %")
    return 0


def shown(values: list[float]) -> str:
    middle, low, high = interval(values)
    return f"{middle:.3f} ({low:.3f} to {high:.3f}, n={len(values)})"


def apart_s(cost_s: float) -> float:
    from gpuconsole.agent.hooks.evidence.collectives import BUDGET, SLOTS

    return next((slot_s for slot_s in SLOTS if slot_s * BUDGET >= cost_s), SLOTS[-1])


def job(size: int, calls: int) -> dict[str, object] | object:
    """What process 0 of a job with a record of `size` entries has measured."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "-m",
        "benchmarks.own_job.collectives",
        "--calls",
        str(calls),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": str(size), "PYTHONPATH": os.getcwd()},
    )
    return json.loads(done.stdout.splitlines()[-1])


def rank(calls: int) -> None:
    """One process of a job."""
    import torch
    import torch.distributed as dist

    from gpuconsole.agent.hooks.evidence.collectives import _loaded

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    number = torch.zeros(1)
    for _ in range(500):
        dist.all_reduce(number)
    begun = time.thread_time()
    for _ in range(calls):
        dist.all_reduce(number)
    call_s, reads_s = (time.thread_time() - begun) / calls, []
    if os.environ["TORCH_FR_BUFFER_SIZE"] != "0":
        for _ in range(READS):
            begun = time.thread_time()
            entries = _loaded(torch._C._distributed_c10d._dump_fr_trace, 2)
            reads_s.append(time.thread_time() - begun)
            del entries
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"call_s": call_s, "reads_s": reads_s}))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        rank(int(sys.argv[sys.argv.index("--calls") + 1]))
    else:
        raise SystemExit(main())
