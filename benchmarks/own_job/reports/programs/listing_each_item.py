"""Each item lists its folder to find its file. Fixed: the folder is listed once."""

import pathlib

import numpy as np
import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOLDER = pathlib.Path("images")


class Images(Dataset):
    def __init__(self):
        FOLDER.mkdir(exist_ok=True)
        for n in range(1500):
            np.save(FOLDER / f"{n:05d}_image.npy", np.full(256, n % 7, dtype=np.float32))
        self.names = sorted(FOLDER.iterdir())

    def __len__(self):
        return 1500

    def __getitem__(self, index):
        file = self.names[index] if pace.FIXED else next(FOLDER.glob(f"{index:05d}_*"))  # slow
        return torch.from_numpy(np.load(file)), index % 7


torch.manual_seed(0)
loader = DataLoader(Images(), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 7))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
going = pace.goes_on()
while going:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not (going := pace.goes_on()):
            break
