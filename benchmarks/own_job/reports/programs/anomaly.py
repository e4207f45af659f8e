"""Anomaly mode is left on in a helper module. Fixed: off."""

import pace
import torch
from torch import nn

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(not pace.FIXED)  # slow


class Field(nn.Module):
    def __init__(self, wide=64, deep=16):
        super().__init__()
        self.first = nn.Linear(63, wide)
        self.rest = nn.ModuleList(nn.Linear(wide, wide) for _ in range(deep))
        self.last = nn.Linear(wide, 4)

    def forward(self, x):
        h = torch.relu(self.first(x))
        for layer in self.rest:
            h = torch.relu(layer(h)) + 0.1 * h
        out = self.last(h)
        return torch.sigmoid(out[:, :3]), torch.relu(out[:, 3])


def encode(points):
    waves = [points]
    for k in range(10):
        waves += [torch.sin(points * 2**k), torch.cos(points * 2**k)]
    return torch.cat(waves, -1)


field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
while pace.goes_on():
    points = torch.rand(256, 3)
    colour, density = field(encode(points))
    weights = 1 - torch.exp(-density)
    loss = ((weights[:, None] * colour - points) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
