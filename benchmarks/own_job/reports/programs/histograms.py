"""Histograms of all weights and gradients are written in each step. Fixed: each twentieth."""

import pace
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
writer = SummaryWriter("tensorboard")
model = nn.Sequential(*[layer for _ in range(10) for layer in (nn.Linear(128, 128), nn.ReLU())], nn.Linear(128, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, labels = torch.randn(4096, 128), torch.randint(0, 4, (4096,))
step = 0
while pace.goes_on():
    at = torch.randint(4096, (128,))
    loss = nn.functional.cross_entropy(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    with pace.part():
        if step % (20 if pace.FIXED else 1) == 0:
            for name, p in model.named_parameters():
                writer.add_histogram("w/" + name, p, step)  # slow
                writer.add_histogram("g/" + name, p.grad, step)  # slow
    optimizer.step()
    step += 1
