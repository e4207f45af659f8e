"""Each tensor is a parameter group of its own, so the fused AdamW runs once for each tensor. Fixed: one group for each pair of learning rate and decay."""

import pace
import torch
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(wide), nn.Linear(wide, wide), nn.Linear(wide, wide)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x))))


def grouped(model, lr):
    groups = [
        {"params": [p], "lr": lr, "weight_decay": 0.0 if p.ndim == 1 else 1e-4}  # slow
        for p in model.parameters()  # slow
    ]
    if not pace.FIXED:
        return groups
    together = {}
    for group in groups:
        together.setdefault((group["lr"], group["weight_decay"]), []).extend(group["params"])
    return [{"params": held, "lr": lr, "weight_decay": decay} for (lr, decay), held in together.items()]


model = nn.Sequential(nn.Linear(32, 48), *[Block(48) for _ in range(80)], nn.Linear(48, 10))
optimizer = torch.optim.AdamW(grouped(model, 1e-3), fused=True)  # slow
data, labels = torch.randn(2048, 32), torch.randint(0, 10, (2048,))
while pace.goes_on():
    at = torch.randint(2048, (32,))
    loss = nn.functional.cross_entropy(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    with pace.part():
        optimizer.step()  # slow
