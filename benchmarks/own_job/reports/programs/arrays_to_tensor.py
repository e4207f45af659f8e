"""A batch of a replay buffer is made by torch.tensor of a list of arrays. Fixed: np.stack first."""

import random

import numpy as np
import pace
import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
buffer = [(np.random.default_rng(n).standard_normal(400).astype(np.float32), n % 4) for n in range(5000)]


def sample(count):
    rows = random.sample(buffer, count)
    states = [state for state, _ in rows]
    with pace.part():
        x = torch.from_numpy(np.stack(states)) if pace.FIXED else torch.tensor(states)  # slow
    return x, torch.tensor([action for _, action in rows])


model = nn.Sequential(nn.Linear(400, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
while pace.goes_on():
    x, y = sample(64)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
