"""A row of a DataFrame is taken for each item. Fixed: arrays are made once."""

import numpy as np
import pace
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

COLUMNS = [f"f{k}" for k in range(40)]


class Table(Dataset):
    def __init__(self):
        generator = np.random.default_rng(0)
        self.frame = pd.DataFrame(generator.standard_normal((4000, 40)), columns=COLUMNS)
        self.frame["shop"] = generator.choice(["a", "b", "c"], 4000)
        self.frame["y"] = generator.integers(0, 3, 4000)
        self.x = self.frame[COLUMNS].to_numpy(np.float32)
        self.y = self.frame["y"].to_numpy()

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        if pace.FIXED:
            return torch.from_numpy(self.x[index]), int(self.y[index])
        row = self.frame.iloc[index]  # slow
        features = row[COLUMNS].values.astype(np.float32)  # slow
        return torch.tensor(features), int(row["y"])  # slow


torch.manual_seed(0)
loader = DataLoader(Table(), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))
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
