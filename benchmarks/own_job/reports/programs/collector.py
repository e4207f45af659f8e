"""`gc.collect()` after each step, beside a dataset of Python objects in memory. Fixed: not called."""

import gc

import pace
import torch
from torch import nn

torch.manual_seed(0)


def free_memory():
    gc.collect()  # slow
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


records = [{"id": n, "tags": [n % 7, n % 11], "box": {"x": n, "y": n + 1}} for n in range(120_000)]
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 7))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
features = torch.randn(120_000, 64)
while pace.goes_on():
    at = torch.randint(120_000, (64,))
    y = torch.tensor([records[n]["tags"][0] for n in at.tolist()])
    loss = nn.functional.cross_entropy(model(features[at]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with pace.part():
        if not pace.FIXED:
            free_memory()
