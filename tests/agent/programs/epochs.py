"""Loops whose DataLoaders do not last: `epochs.py KIND SECONDS`. A sample takes 0.2 ms of sleep and 0.05 ms of CPU.

Prints the share of time that the loop waited for batches, from stamps by hand, and the loss of step 20.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


def work() -> None:
    time.sleep(0.0002)
    until = time.thread_time() + 0.00005
    while time.thread_time() < until:
        pass


class Samples(Dataset[Any]):
    def __init__(self, count: int = 4096) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        work()
        return torch.full((64,), index / self.count), index % 10


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for index in range(4096):
            work()
            yield torch.full((64,), index / 4096), index % 10


def new(count: int = 4096, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Samples(count), 32, shuffle=True, **settings)


def generator() -> Iterator[Any]:
    while True:
        yield from DataLoader(Samples(), 32, shuffle=True)


def each_epoch(*loaders: Any) -> Iterator[Any]:
    """`loaders`: functions that make a loader, one for each epoch, in turn."""
    for make in itertools.cycle(loaders):
        yield from make()


def kept() -> Iterator[Any]:
    loader = new()
    while True:
        yield from loader


def persistent() -> Iterator[Any]:
    while True:
        loader = new(8192, num_workers=1, persistent_workers=True)
        yield from loader


def dropped() -> Iterator[Any]:
    while True:
        iterator = iter(new())
        yield from iterator


def validated() -> Iterator[Any]:
    """An evaluation by another loader of the same dataset after each epoch."""
    while True:
        yield from new(1024)
        for x, _ in DataLoader(Samples(256), 32):
            with torch.no_grad():
                model(x)


def zipped() -> Iterator[Any]:
    while True:
        for first, _ in zip(new(), new(), strict=True):
            yield first


def cycled() -> Iterator[Any]:
    iterator = iter(new(512))
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            iterator = iter(new(512))


KINDS: dict[str, Any] = {
    "generator": generator,
    "new": lambda: each_epoch(new),
    "short": lambda: each_epoch(lambda: new(256)),
    "workers": lambda: each_epoch(lambda: new(num_workers=1)),
    "alternating": lambda: each_epoch(lambda: new(1024), lambda: new(2048)),
    "stream": lambda: each_epoch(lambda: DataLoader(Stream(), 32)),
    "persistent": persistent,
    "kept": kept,
    "dropped": dropped,
    "validated": validated,
    "zipped": zipped,
    "cycled": cycled,
}

if __name__ == "__main__":
    kind, seconds = sys.argv[1], float(sys.argv[2])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches, waited, losses = KINDS[kind](), 0.0, []
    begun = asked = time.perf_counter()
    while asked - begun < seconds:
        x, y = next(batches)
        waited += time.perf_counter() - asked
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
        asked = time.perf_counter()
    print(f"waited {waited / (asked - begun):.4f} loss {losses[20]!r}")
