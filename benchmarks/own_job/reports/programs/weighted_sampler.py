"""Each short epoch draws from millions of weights. Fixed: one draw for many epochs."""

import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

COUNT, EPOCH = 6_000_000, 640


class Rows(Dataset):
    def __init__(self):
        self.data = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self.data[index % 4096], index % 10


def main():
    torch.manual_seed(0)
    weights = torch.rand(COUNT, dtype=torch.double)
    sampler = WeightedRandomSampler(weights, EPOCH * (1000 if pace.FIXED else 1))
    loader = DataLoader(Rows(), batch_size=32, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    going = pace.goes_on()
    while going:
        for x, y in loader:  # slow
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not (going := pace.goes_on()):
                break


main()
