"""`itertools.cycle` over a loader keeps every batch: host memory grows. Fixed: a generator that iterates again."""

import itertools

import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.full((3, 32, 32), float(index % 7)), index % 10


def again(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    loader = DataLoader(Images(), batch_size=16, shuffle=True)
    batches = again(loader) if pace.FIXED else itertools.cycle(loader)  # slow
    model = nn.Sequential(nn.Conv2d(3, 16, 7, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while pace.goes_on():
        x, y = next(batches)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
