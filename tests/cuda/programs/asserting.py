"""A job whose kernel fails an assertion: `python asserting.py KIND`. From then on each call of CUDA fails until the process ends."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KIND, BAD = sys.argv[1], 60
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
labels = torch.arange(8 * 100) % 10
if KIND in ("label", "caught"):
    labels[8 * BAD + 3] = 10  # there is no such class
data = TensorDataset(torch.randn(8 * 100, 16), labels)
try:
    for step, (x, y) in enumerate(DataLoader(data, 8, pin_memory=KIND == "pinned")):
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), y)
        if KIND in ("assert", "pinned") and step == BAD:
            torch._assert_async(loss < 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, f"{loss.item():.5f}", flush=True)
except torch.AcceleratorError:
    if KIND != "caught":
        raise
    print("stopped at", step)
    sys.exit(3)
