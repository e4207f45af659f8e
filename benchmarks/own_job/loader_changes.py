"""Random live changes of DataLoaders, with two ranks: does the program see other samples, another
order, or other random numbers?

    python -m benchmarks.own_job.loader_changes [--changes 1000] [--ranks 2] [--first-seed 0]

Each program runs twice, without changes and with random changes of num_workers and prefetch_factor
over several epochs. Programs differ in sampler (shuffle, own generator, own sampler, own batch
sampler, no batches, DistributedSampler), workers, persistence and breaks. Prints one JSON line, and
exits with 1 where anything differs or a worker process remains. Two ranks take about 2 minutes on 2
cores for 1000 changes.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import time
import warnings

import torch

from tests.agent.hooks.changes.loaders import compare, hooked


def changes_of_rank(rank: int, wanted: int, first_seed: int) -> dict[str, object]:
    """Programs until `wanted` changes were made. The ranks exchange a tensor after each program."""
    begun, seed, done, different = time.monotonic(), first_seed, 0, list[int]()
    refused = collections.Counter[str]()
    several = torch.distributed.is_initialized()
    with hooked() as watch:
        total = 0
        while total < wanted:
            same, changer = compare(watch, seed, rank)
            different += [] if same else [seed]
            refused.update(changer.refused)
            done += changer.done
            made = torch.tensor([done])
            if several:
                torch.distributed.all_reduce(made)
            total, seed = int(made), seed + 1
        gc.collect()
        left = len(multiprocessing.active_children())
    return {
        "rank": rank,
        "programs": seed - first_seed,
        "changes": done,
        "different": different,
        "refused": refused,
        "workers_left": left,
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--changes", type=int, default=1000, help="changes of all ranks together")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    args = parser.parse_args()
    if args.ranks > 1 and "RANK" not in os.environ:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={args.ranks}",
            "-m",
            __spec__.name,
        ]
        return subprocess.run([*command, *sys.argv[1:]], check=False).returncode
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if args.ranks > 1:
        torch.distributed.init_process_group("gloo")
    found = changes_of_rank(rank, args.changes, args.first_seed)
    print(json.dumps(found), flush=True)
    if args.ranks > 1:
        torch.distributed.destroy_process_group()
    return 1 if found["different"] or found["workers_left"] else 0


if __name__ == "__main__":
    sys.exit(main())
