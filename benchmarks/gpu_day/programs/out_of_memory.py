"""A job that trains for some seconds, then takes larger and larger batches until the memory of the GPU is full."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(4096, 4096), nn.GELU()))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = 1024
for number in range(1_000_000):
    loss = model(torch.ones(batch, 4096, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if number >= 60 and number % 2 == 0:
        batch *= 2
        print(f"batch {batch}, loss {loss.item():.4g}", flush=True)
