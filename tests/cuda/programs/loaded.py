"""A job that fills the card with large products: `loaded.py WAY SECONDS`. `cache`: it empties the allocator's cache in each step."""

import sys
import time

import torch
from torch import nn

WAY, SECONDS = sys.argv[1], float(sys.argv[2])
dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)]).to("cuda", dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(4096, 4096, device="cuda", dtype=dtype)
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if WAY == "cache":
        torch.cuda.empty_cache()
torch.cuda.synchronize()
