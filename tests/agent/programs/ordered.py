"""A loop of SECONDS seconds that waits for data. `ordered WORKERS`: the sampler sorts all samples at the start of each epoch. `short 0`: each batch takes
0.3 ms to load, and a step little more."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KIND, WORKERS, SECONDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


class Samples(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if KIND == "short":
            until = time.perf_counter() + 0.00005
            while time.perf_counter() < until:
                pass
        return torch.full((64,), index / 100_000), index % 10


class Sorted:
    def __iter__(self):
        order = sorted(range(1_500_000), key=lambda index: index * 7919 % 10_007)
        for start in range(0, 800, 8):
            yield [index % 100_000 for index in order[start : start + 8]]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Samples(), 8) if KIND == "short" else DataLoader(Samples(), batch_sampler=Sorted(), num_workers=WORKERS)
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if time.perf_counter() > end:
                break
    print(loss.item())


if __name__ == "__main__":
    main()
