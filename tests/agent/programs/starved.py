"""A plain loop that waits for its data: a sample takes 1 ms of sleep. Ends when the file of its argument exists."""

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        import time

        time.sleep(0.001)
        return torch.full((32,), float(index % 7)), index % 10


torch.multiprocessing.set_start_method("fork")  # the default before Python 3.14
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(
    Samples(),
    batch_size=32,
    shuffle=True,
)
steps = 0
while not os.path.exists(sys.argv[1]):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        steps += 1
        if os.path.exists(sys.argv[1]):
            break
print("steps", steps)
