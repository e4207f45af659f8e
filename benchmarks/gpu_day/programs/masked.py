"""A loss over the rows that a mask keeps: torch waits for the GPU in each step to learn their number: `python masked.py SECONDS`."""

import sys
import time

import torch
from torch import nn

STEPS, EVERY, SECONDS = 400, 100, float(sys.argv[1])
torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.GELU())], nn.Linear(2048, 16)).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
inputs = torch.randn(4096, 2048, device="cuda", dtype=torch.bfloat16)
targets = torch.randn(4096, 16, device="cuda", dtype=torch.bfloat16)
keep = torch.arange(4096, device="cuda") % 4 > 0
begun, number = time.monotonic(), 0
while number < STEPS or time.monotonic() - begun < SECONDS:
    number += 1
    outputs = model(inputs)
    loss = nn.functional.mse_loss(outputs[keep], targets[keep])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % EVERY == 0 and number <= STEPS:
        print(f"step {number}: loss {loss.item():.9g}", flush=True)
