"""A loop whose loading computes in one of three transforms: `slow_part.py START_METHOD SECONDS`. Without workers where START_METHOD is `none`."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Chain:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


def used(seconds):
    """Compute in Python for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Flip:
    def __call__(self, x):
        used(0.0003)
        return x.flip(0)


class Blur:
    def __call__(self, x):
        used(0.0015)
        return x


class Samples(Dataset):
    def __init__(self):
        self.transform = Chain([Flip(), Blur(), Flip()])

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.transform(torch.full((32,), float(index % 7)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    method = sys.argv[1]
    options = {} if method == "none" else {"num_workers": 1, "multiprocessing_context": method}
    model = nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    end = time.monotonic() + float(sys.argv[2])
    for x in DataLoader(Samples(), 8, **options):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if time.monotonic() > end:
            break
