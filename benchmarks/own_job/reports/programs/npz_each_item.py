"""Each item opens a compressed archive and takes one row. Fixed: the archives are read once."""

import numpy as np
import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __init__(self):
        for n in range(8):
            np.savez_compressed(f"volume{n}.npz", rows=np.random.default_rng(n).standard_normal((64, 512)).astype(np.float32))
        self.whole = [np.load(f"volume{n}.npz")["rows"] for n in range(8)]

    def __len__(self):
        return 512

    def __getitem__(self, index):
        volume, row = divmod(index, 64)
        rows = self.whole[volume] if pace.FIXED else np.load(f"volume{volume}.npz")["rows"]  # slow
        return torch.from_numpy(rows[row]), index % 10


torch.manual_seed(0)
loader = DataLoader(Volumes(), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
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
