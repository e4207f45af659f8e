"""A lock around the reader of a file lets one worker read at a time. Fixed: no lock."""

import contextlib
import multiprocessing

import numpy as np
import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

lock = contextlib.nullcontext() if pace.FIXED else multiprocessing.Lock()


class Records(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        generator = np.random.default_rng(index)
        with lock:  # slow
            record = np.sort(generator.standard_normal(30_000)).astype(np.float32)  # slow
        return torch.from_numpy(record[:512].copy()), index % 10


def main():
    torch.manual_seed(0)
    loader = DataLoader(Records(), batch_size=16, num_workers=2)
    model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not pace.goes_on():
            break


if __name__ == "__main__":
    main()
