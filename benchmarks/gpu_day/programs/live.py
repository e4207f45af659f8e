"""A small network for pictures, in fp32 with an optimizer that is not fused, so that each live change applies: `python live.py SECONDS`. The losses of the
first STEPS steps are printed; then it goes on until SECONDS have passed."""

import sys
import time

import torch
from torch import nn

STEPS, EVERY = 300, 50
torch.manual_seed(0)
layers = [layer for _ in range(3) for layer in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())]
model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
inputs, targets = torch.randn(64, 3, 32, 32, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
begun, number = time.monotonic(), 0
while number < STEPS or time.monotonic() - begun < float(sys.argv[1]):
    number += 1
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % EVERY == 0 and number <= STEPS:
        print(f"step {number}: loss {loss.item():.9g}", flush=True)
print(f"last: loss {loss.item():.9g}", flush=True)
