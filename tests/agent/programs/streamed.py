"""A loop whose steps wait for data: `streamed.py KIND SECONDS`. KIND: an IterableDataset that gives all samples to each worker (`whole`), or a part to each
(`divided`); `lines`: the program makes its batches itself."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Whole(IterableDataset):
    def __iter__(self):
        for number in range(10**6):
            time.sleep(0.001)
            yield torch.full((32,), float(number % 7))


class Divided(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for number in range(first, 10**6, step):
            time.sleep(0.001)
            yield torch.full((32,), float(number % 7))


def lines():
    while True:
        time.sleep(0.008)
        yield torch.ones(8, 32)


def train(batches, seconds):
    model = nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    end = time.monotonic() + seconds
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, seconds = sys.argv[1], float(sys.argv[2])
    batches = lines() if kind == "lines" else DataLoader({"whole": Whole, "divided": Divided}[kind](), 8)
    if len(sys.argv) > 3:  # a stand-in for the loop of a framework
        from lightning.pytorch.loops import train
    train(batches, seconds)
