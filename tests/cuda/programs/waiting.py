"""A job that waits for the GPU in each block of its model, in a way that no method of a tensor shows: `python waiting.py WAY STEPS`."""

import sys

import torch
from torch import nn

WAY, STEPS = sys.argv[1], int(sys.argv[2])
WAYS = {
    "number": lambda x: x * torch.tensor(0.5, device=x.device),
    "mask": lambda x: x * x[x > 0].mean(),
    "copy": lambda x: x * torch.ones(256).to(x),
    "none": lambda x: x * 0.5,
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 256)

    def forward(self, x):
        return WAYS[WAY](self.inner(x))


model = nn.Sequential(*[Block() for _ in range(8)]).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(4096, 256, device="cuda")
for _ in range(STEPS):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print("steps", STEPS)
