"""`next(iter(loader))` in each step starts the workers again. Fixed: one iterator."""

import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def again(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(20_000, 64), torch.randint(0, 10, (20_000,))), batch_size=64, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = again(loader)
    while pace.goes_on():
        with pace.part():
            x, y = next(batches) if pace.FIXED else next(iter(loader))  # slow
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
