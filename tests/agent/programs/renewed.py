"""A loop over a DataLoader: `renewed.py KIND SECONDS`. KIND: `each` makes an iterator in each step, `once` makes one for an epoch, `full` has one batch in an epoch,
`rows` fetches the rows of a TensorDataset, `batches` indexes whole batches of it."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

kind, seconds = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)


class Samples(Dataset):
    def __len__(self):
        return 16 if kind == "full" else 4000

    def __getitem__(self, index):
        return torch.full((32,), float(index % 7))


def drawn(loader):
    return next(iter(loader))


table = TensorDataset(torch.randn(60_000, 32), torch.randn(60_000, 1))
if kind == "batches":
    loader = DataLoader(table, sampler=BatchSampler(RandomSampler(table), 1024, drop_last=False), batch_size=None)
elif kind == "rows":
    loader = DataLoader(table, batch_size=1024, shuffle=True)
else:
    loader = DataLoader(Samples(), 16, shuffle=True, num_workers=0 if kind == "full" else 2)
model = nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
begun = time.perf_counter()
while time.perf_counter() - begun < seconds:
    for x in [drawn(loader)] if kind == "each" else loader:
        if isinstance(x, list):
            x, _ = x
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if time.perf_counter() - begun > seconds:
            break
print("done")
