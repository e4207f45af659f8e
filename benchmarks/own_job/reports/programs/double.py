"""NumPy's float64 makes the whole model compute in double precision. Fixed: float32."""

import numpy as np
import pace
import torch
from torch import nn

torch.manual_seed(0)
data = np.random.default_rng(0).standard_normal((4096, 512))
if pace.FIXED:
    data = data.astype(np.float32)
table = torch.from_numpy(data)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(table.dtype)  # slow
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
labels = torch.randint(0, 10, (4096,))
while pace.goes_on():
    at = torch.randint(4096, (256,))
    loss = nn.functional.cross_entropy(model(table[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
