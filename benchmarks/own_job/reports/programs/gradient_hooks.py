"""A hook on each parameter logs the norm of its gradient in the backward pass. Fixed: no hooks."""

import pace
import torch
from torch import nn

torch.manual_seed(0)
norms = {}


def watch(name, p):
    def log(gradient):
        norms[name] = (gradient.norm().item(), gradient.abs().max().item(), gradient.std().item())  # slow

    p.register_hook(log)


model = nn.Sequential(*[layer for _ in range(24) for layer in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 4))
if not pace.FIXED:
    for name, p in model.named_parameters():
        watch(name, p)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data, labels = torch.randn(4096, 64), torch.randint(0, 4, (4096,))
while pace.goes_on():
    at = torch.randint(4096, (32,))
    loss = nn.functional.cross_entropy(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
