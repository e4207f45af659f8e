"""A compiled model: `python compiled.py default|reduce-overhead SECONDS [fullgraph]`. The losses of the first STEPS steps are
printed; then it goes on until SECONDS have passed."""

import sys
import time

import torch
from torch import nn

STEPS, EVERY, SECONDS = 400, 100, float(sys.argv[2])
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024))]
model = torch.compile(nn.Sequential(*layers, nn.Linear(1024, 16)).cuda(), mode=sys.argv[1], fullgraph="fullgraph" in sys.argv)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
inputs, targets = torch.randn(512, 1024, device="cuda"), torch.randn(512, 16, device="cuda")
begun, number = time.monotonic(), 0
while number < STEPS or time.monotonic() - begun < SECONDS:
    number += 1
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.mse_loss(model(inputs).float(), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % EVERY == 0 and number <= STEPS:
        print(f"step {number}: loss {loss.item():.9g}", flush=True)
