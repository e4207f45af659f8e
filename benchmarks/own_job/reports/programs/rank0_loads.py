"""Rank 0 loads the batches of both ranks and sends them. Fixed: each rank loads its own."""

import time

import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        while True:
            time.sleep(0.002)  # slow: one record of a remote stream
            yield torch.randn(64, generator=generator)


def batches(rank):
    loader = iter(DataLoader(Stream(), batch_size=8))
    while True:
        if pace.FIXED:
            yield next(loader)
        else:
            parts = [next(loader), next(loader)] if rank == 0 else [torch.empty(8, 64), torch.empty(8, 64)]  # slow
            both = torch.cat(parts)
            dist.broadcast(both, 0)  # slow
            yield both[rank * 8 : rank * 8 + 8]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = batches(rank)
    while pace.steps_left(800 if pace.FIXED else 400):
        with pace.part():
            x = next(source)
        loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
