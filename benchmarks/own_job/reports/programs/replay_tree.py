"""Prioritized replay walks its sum tree in Python, once for each item of the batch. Fixed: by arrays, once for each level of the tree."""

import numpy as np
import pace
import torch
from torch import nn

torch.manual_seed(0)
SIZE, LEVELS = 1 << 14, 14


class Tree:
    def __init__(self, values):
        self.nodes = np.zeros(2 * SIZE) if pace.FIXED else [0.0] * (2 * SIZE)
        for i, value in enumerate(values):
            self.nodes[SIZE + i] = value
        for i in range(SIZE - 1, 0, -1):
            self.nodes[i] = self.nodes[2 * i] + self.nodes[2 * i + 1]

    def found(self, mass):
        if pace.FIXED:
            at = np.ones(len(mass), np.int64)
            for _ in range(LEVELS):
                left = self.nodes[2 * at]
                right = mass > left
                mass, at = np.where(right, mass - left, mass), 2 * at + right
            return at - SIZE
        found = []
        for value in mass:
            at = 1
            while at < SIZE:  # slow
                at *= 2  # slow
                if value > self.nodes[at]:  # slow
                    value -= self.nodes[at]  # slow
                    at += 1  # slow
            found.append(at - SIZE)  # slow
        return np.array(found)

    def change(self, places, values):
        if pace.FIXED:
            self.nodes[SIZE + places] = values
            above = np.unique((SIZE + places) // 2)
            while above[0]:
                self.nodes[above] = self.nodes[2 * above] + self.nodes[2 * above + 1]
                above = np.unique(above // 2)
            return
        for i, value in zip(places.tolist(), values.tolist(), strict=True):
            at = SIZE + i  # slow
            self.nodes[at] = value  # slow
            while at > 1:  # slow
                at //= 2  # slow
                self.nodes[at] = self.nodes[2 * at] + self.nodes[2 * at + 1]  # slow


chance = np.random.default_rng(0)
tree = Tree(chance.random(SIZE) + 0.1)
states, values = torch.randn(SIZE, 16), torch.randn(SIZE, 4)
model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
while pace.goes_on():
    with pace.part():
        places = tree.found(chance.random(256) * tree.nodes[1])  # slow
    error = (model(states[places]) - values[places]).pow(2).mean(1)
    loss = error.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with pace.part():
        places, last = np.unique(places, return_index=True)
        tree.change(places, error.detach().double().numpy()[last] + 0.1)  # slow
