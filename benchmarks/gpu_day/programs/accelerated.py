"""accelerate with mixed_precision="bf16": autocast around the model's forward, which the program does not write. Ends with the code 3 without
accelerate: `python accelerated.py SECONDS`."""

import sys
import time

try:
    from accelerate import Accelerator
    from accelerate.utils import set_seed
except ImportError as error:
    print(f"{error}", file=sys.stderr)
    sys.exit(3)
import torch
from torch import nn

STEPS, EVERY, SECONDS = 400, 100, float(sys.argv[1])
set_seed(0)
accelerator = Accelerator(mixed_precision="bf16")
layers = [layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(2048, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer = accelerator.prepare(model, optimizer)
inputs, targets = torch.randn(4096, 2048, device=accelerator.device), torch.randn(4096, 16, device=accelerator.device)
begun, number = time.monotonic(), 0
while number < STEPS or time.monotonic() - begun < SECONDS:
    number += 1
    loss = nn.functional.mse_loss(model(inputs).float(), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if number % EVERY == 0 and number <= STEPS:
        print(f"step {number}: loss {loss.item():.9g}", flush=True)
