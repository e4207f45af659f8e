"""Workers read a list of Python objects and copy it page by page: their memory grows. Fixed: one array."""

import numpy as np
import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Notes(Dataset):
    def __init__(self, count=2_000_000):
        self.notes = (
            np.arange(count, dtype=np.int64) if pace.FIXED else [{"name": f"image_{n:08d}.png", "label": n + 1000} for n in range(count)]
        )

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, index):
        note = self.notes[index]  # slow
        label = int(note) % 10 if pace.FIXED else (note["label"] - 1000) % 10
        return torch.full((64,), label / 10.0), label


def main():
    torch.manual_seed(0)
    loader = DataLoader(Notes(), batch_size=16, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not pace.goes_on():
            break


main()
