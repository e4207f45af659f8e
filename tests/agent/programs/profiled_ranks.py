"""Two processes of DistributedDataParallel: `profiled_ranks.py FOLDER`. Ends when the file `FOLDER/end` exists, or after STEPS steps.

Each process writes to `FOLDER/rankN`, a line for each step: its loss, and the seconds since the step before.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "1000000"))

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(2 + rank)
    over, before = torch.zeros(1), time.monotonic()
    with open(folder / f"rank{rank}", "w", buffering=1) as made:
        for _ in range(STEPS):
            x = torch.randn(32, 64)
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            now = time.monotonic()
            made.write(f"{loss.item().hex()} {now - before:.4f}\n")
            before = now
            over += rank == 0 and (folder / "end").exists()
            dist.broadcast(over, 0)
            if over:
                break
    print(f"rank {rank} is done")
    dist.destroy_process_group()
