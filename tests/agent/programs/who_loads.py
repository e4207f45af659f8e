"""Prints for each of the steps whether a worker has loaded its batch (1) or the training process (0)."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

BY_WORKER = torch.zeros(1 << 20, dtype=torch.bool).share_memory_()
"""For each sample, whether a worker has loaded it. Not a part of the sample: a change that gives other batches is refused."""


class Samples(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        BY_WORKER[index] = get_worker_info() is not None
        return torch.full((8,), index / (1 << 20))


torch.multiprocessing.set_start_method("fork")  # the default before Python 3.14
torch.set_num_threads(1)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
for n, x in enumerate(DataLoader(Samples(), 4)):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    print(int(BY_WORKER[4 * n]), end="", flush=True)
    time.sleep(0.01)
    if n == int(sys.argv[1]):
        break
print()
