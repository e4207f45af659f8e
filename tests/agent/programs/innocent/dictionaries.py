"""Dictionaries whose attributes are their items, as batches and as settings: a missing attribute raises KeyError."""

import os
import tempfile

import torch


class Items(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, batch):
        return self.linear(batch.x)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
settings = Items(path=os.path.join(tempfile.mkdtemp(), "model.pt"))


def save(settings):
    torch.save(model.state_dict(), settings.path)


def load():
    return Items(x=torch.randn(2, 4))


for i in range(60):
    optimizer.zero_grad()
    loss = model(load()).pow(2).mean()
    loss.backward()
    optimizer.step()
    if i % 20 == 0:
        save(settings)
print(loss.item())
