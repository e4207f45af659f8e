"""A dataset of `datasets` gives nested lists as tensors by with_format("torch"). Fixed: the column is one array of tensors."""

import datasets
import numpy as np
import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
datasets.disable_progress_bars()
rows = np.random.default_rng(0).standard_normal((2000, 16, 32)).astype(np.float32)
labels = [n % 5 for n in range(2000)]
if pace.FIXED:
    table = TensorDataset(torch.from_numpy(rows), torch.tensor(labels))
else:
    table = datasets.Dataset.from_dict({"x": rows.tolist(), "y": labels}).with_format("torch")
loader = DataLoader(table, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
going = pace.goes_on()
while going:
    for batch in loader:  # slow
        x, y = batch if pace.FIXED else (batch["x"], batch["y"])
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not (going := pace.goes_on()):
            break
