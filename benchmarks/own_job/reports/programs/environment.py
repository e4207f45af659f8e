"""A simulation in pure Python makes the experience of each step. Fixed: all environments move in one operation."""

import math

import pace
import torch
from torch import nn

torch.manual_seed(0)


class Pendulum:
    def __init__(self, angle):
        self.angle, self.speed = angle, 0.0

    def step(self, push):
        for _ in range(8):
            self.speed += 0.01 * (math.sin(self.angle) + push)  # slow
            self.angle += 0.01 * self.speed  # slow
        return self.angle, self.speed


def one_by_one(actions):
    return torch.tensor([world.step(push) for world, push in zip(worlds, actions.tolist(), strict=True)])  # slow


def all_at_once(actions):
    for _ in range(8):
        state[:, 1] += 0.01 * (torch.sin(state[:, 0]) + actions)
        state[:, 0] += 0.01 * state[:, 1]
    return state.clone()


worlds = [Pendulum(n / 100) for n in range(256)]
state = torch.tensor([[n / 100, 0.0] for n in range(256)])
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
seen = state.clone()
while pace.goes_on():
    with torch.no_grad():
        actions = model(seen)[:, 0].clamp(-1, 1)
    with pace.part():
        seen = all_at_once(actions) if pace.FIXED else one_by_one(actions)  # slow
    loss = (model(seen)[:, 0] + seen[:, 0].sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
