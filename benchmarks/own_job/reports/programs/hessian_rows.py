"""The Hessian of an energy is made by one backward pass for each row. Fixed: one batched backward pass."""

import pace
import torch
from torch import nn

torch.manual_seed(0)


def hessian(energy, places):
    (forces,) = torch.autograd.grad(energy.sum(), places, create_graph=True)
    columns = forces.shape[1]
    if pace.FIXED:
        rows = torch.eye(columns)[:, None].expand(-1, len(forces), -1)
        return torch.autograd.grad(forces, places, rows, create_graph=True, is_grads_batched=True)[0]
    rows = []
    for column in range(columns):
        row = torch.autograd.grad(forces[:, column].sum(), places, create_graph=True)[0]  # slow
        rows.append(row)
    return torch.stack(rows)


model = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
molecules, stiffness = torch.randn(2048, 9), torch.randn(9, 9)
while pace.goes_on():
    x = molecules[torch.randint(2048, (12,))].requires_grad_()
    energy = model(x)
    with pace.part():
        curvature = hessian(energy, x)
    loss = energy.pow(2).mean() + (curvature - stiffness[:, None]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
