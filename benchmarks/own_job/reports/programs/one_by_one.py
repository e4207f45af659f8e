"""Rows of tensors in memory are fetched one by one and stacked. Fixed: a batch is indexed at once."""

import pace
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.manual_seed(0)
table = TensorDataset(torch.randn(60_000, 32), torch.randint(0, 10, (60_000,)))
if pace.FIXED:
    loader = DataLoader(table, sampler=BatchSampler(RandomSampler(table), 1024, False), batch_size=None)
else:
    loader = DataLoader(table, batch_size=1024, shuffle=True)
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
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
