"""Each step starts a program that reads the GPU's memory. Fixed: each two hundredth step."""

import subprocess

import pace
import torch
from torch import nn

torch.manual_seed(0)


def memory_of_gpus():
    """As loggers call nvidia-smi; `env` stands for it where there is no GPU."""
    return subprocess.run(["env"], capture_output=True, text=True, check=True).stdout.count("\n")  # slow


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, labels = torch.randn(4096, 64), torch.randint(0, 4, (4096,))
step = 0
while pace.goes_on():
    at = torch.randint(4096, (128,))
    loss = nn.functional.cross_entropy(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with pace.part():
        if step % (200 if pace.FIXED else 1) == 0:
            memory_of_gpus()  # slow
    step += 1
