"""A thread of the program computes in pure Python while the model trains. Fixed: no such thread."""

import threading

import pace
import torch
from torch import nn

torch.manual_seed(0)
recent, over = [], threading.Event()


def plot():
    while not over.is_set():
        points = list(recent[-500:])
        path = [(n, value * 100) for n, value in enumerate(points)]  # slow
        for a in range(200_000):  # slow
            path = path if a % 7 else [(x, y) for x, y in path[:10]]  # slow


model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(96, 96), nn.ReLU())], nn.Linear(96, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, labels = torch.randn(4096, 96), torch.randint(0, 4, (4096,))
if not pace.FIXED:
    threading.Thread(target=plot, daemon=True).start()
while pace.goes_on():
    at = torch.randint(4096, (64,))
    loss = nn.functional.cross_entropy(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    recent.append(loss.item())
over.set()
