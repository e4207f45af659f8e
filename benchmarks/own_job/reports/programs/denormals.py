"""Weights decay to denormal numbers, with which a CPU computes slowly. Fixed: torch.set_flush_denormal(True)."""

import pace
import torch
from torch import nn

torch.manual_seed(0)
torch.set_flush_denormal(pace.FIXED)


class Filtered(nn.Module):
    def __init__(self, wide=256):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(wide, wide) for _ in range(6))
        self.register_buffer("trace", torch.ones(6, wide, wide))

    def forward(self, x):
        for n, layer in enumerate(self.layers):
            self.trace[n].mul_(0.9)
            x = torch.tanh(layer(x) + 0.1 * x @ self.trace[n])  # slow
        return x


model = Filtered()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data = torch.randn(2048, 256)
while pace.goes_on():
    x = data[torch.randint(2048, (64,))]
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
