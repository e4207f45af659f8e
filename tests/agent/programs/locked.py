"""A loop whose workers read behind one lock: `locked.py KIND SECONDS [WORKERS]`. KIND: `lock` holds a multiprocessing.Lock around the read, `flock` the lock of a
file, `free` holds none. The rate goes to stderr."""

import fcntl
import multiprocessing
import os
import sys
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

kind, seconds, workers = sys.argv[1], float(sys.argv[2]), int((sys.argv[3:] or ["2"])[0])


class Files(Dataset):
    def __init__(self, path):
        self.path = path
        self.lock = multiprocessing.Lock()

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if kind == "lock":
            with self.lock:
                return read(index)
        if kind == "flock":
            file = os.open(self.path, os.O_RDONLY)
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                return read(index)
            finally:
                os.close(file)
        return read(index)


def read(index):
    time.sleep(0.002)  # a disk
    return torch.full((32,), float(index % 7))


torch.set_num_threads(1)
with tempfile.NamedTemporaryFile() as file:
    model = nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    steps = 0
    begun = time.monotonic()
    for x in DataLoader(Files(file.name), 8, num_workers=workers):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        steps += 1
        if time.monotonic() > begun + seconds:
            break
print("done")
print(f"{steps / (time.monotonic() - begun):.1f} steps/s", file=sys.stderr)
