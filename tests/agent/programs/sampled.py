"""Trains for some seconds, with time in lines of its own: `match` computes in the loss, `ask` waits between two steps, `read` waits while it loads.
Prints the share of each, by its own clock."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
spent = dict.fromkeys(("match", "ask", "forward", "read"), 0.0)


def timed(name, function):
    begun = time.perf_counter()
    result = function()
    spent[name] += time.perf_counter() - begun
    return result


def match():
    return sum(n * n for n in range(40_000))


def ask():
    time.sleep(0.008)


def read():
    time.sleep(0.005)


class Items(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        timed("read", read)
        return torch.ones(64)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        begun = time.perf_counter()
        for _ in range(60):
            x = self.layer(x).tanh()
        spent["forward"] += time.perf_counter() - begun
        return x


model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
start = time.perf_counter()
for step, batch in enumerate(DataLoader(Items(), 1)):
    if step == 5:
        start, spent = time.perf_counter(), dict.fromkeys(spent, 0.0)
    out = model(batch)
    timed("match", match)
    optimizer.zero_grad()
    out.sum().backward()
    optimizer.step()
    timed("ask", ask)
    if time.perf_counter() - start > 8:
        break
wall = time.perf_counter() - start
for name, seconds in spent.items():
    print(name, round(seconds / wall, 4))
