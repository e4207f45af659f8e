"""Metrics are reduced over two ranks in each step. Fixed: each fiftieth."""

import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def log_all(metrics):
    dist.barrier()  # slow
    for value in metrics.values():
        dist.all_reduce(value)  # slow


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data, labels = torch.randn(2048, 64), torch.randint(0, 4, (2048,))
    step = 0
    while pace.steps_left(3000 if pace.FIXED else 1500):
        at = torch.randint(2048, (32,))
        loss = nn.functional.cross_entropy(model(data[at]), labels[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with pace.part():
            if step % (50 if pace.FIXED else 1) == 0:
                log_all({f"metric{k}": loss.detach().clone() for k in range(10)})
        step += 1
    dist.destroy_process_group()


main()
