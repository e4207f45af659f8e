"""Shampoo takes the roots of its matrices by eigh in each step. Fixed: in each twentieth step."""

import pace
import torch
from torch import nn

torch.manual_seed(0)


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, momentum=0.9, every=1):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.every, self.count = every, 0

    def root(self, matrix, power):
        values, vectors = torch.linalg.eigh(matrix)  # slow
        return vectors * values.clamp(min=1e-6).pow(-1 / power) @ vectors.T  # slow

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["moment"] = torch.zeros_like(p)
                    state["sums"] = [torch.eye(n) * 1e-3 for n in p.shape]
                    state["roots"] = [torch.eye(n) for n in p.shape]
                grad = p.grad
                for dim in range(p.ndim):
                    flat = p.grad.movedim(dim, 0).flatten(1) if p.ndim > 1 else p.grad[:, None]
                    state["sums"][dim].addmm_(flat, flat.T)
                    if self.count % self.every == 0:
                        state["roots"][dim] = self.root(state["sums"][dim], 2 * p.ndim)  # slow
                    grad = torch.tensordot(grad, state["roots"][dim], dims=([0], [0]))
                state["moment"].mul_(group["momentum"]).add_(grad)
                p.add_(state["moment"], alpha=-group["lr"])
        self.count += 1


model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
optimizer = Shampoo(model.parameters(), every=20 if pace.FIXED else 1)
data, labels = torch.randn(2048, 64), torch.randint(0, 10, (2048,))
while pace.goes_on():
    at = torch.randint(2048, (256,))
    loss = nn.functional.cross_entropy(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    with pace.part():
        optimizer.step()
