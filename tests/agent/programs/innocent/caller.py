"""A batch and a checkpoint depend on the function that asks for them: its name, its line and its variables."""

import inspect
import os
import sys
import tempfile

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
PATH = os.path.join(tempfile.mkdtemp(), "model.pt")


def save():
    frame = inspect.currentframe().f_back
    print("saved by", frame.f_code.co_name, "in line", frame.f_lineno, "at step", frame.f_locals["i"])
    torch.save(model.state_dict(), PATH)


def batch():
    generator = torch.Generator().manual_seed(sys._getframe(1).f_locals["i"])
    return torch.randn(2, 4, generator=generator)


def train():
    for i in range(60):
        optimizer.zero_grad()
        loss = model(batch()).pow(2).mean()
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            save()
    print(loss.item())


train()
