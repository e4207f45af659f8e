# Sharpness-aware minimisation: an optimizer around an optimizer, two passes a step, BatchNorm that counts batches.
import hashlib

import torch


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad * group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        self.first_step()
        torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
for _ in range(120):
    inputs, targets = torch.randn(16, 8), torch.randint(0, 3, (16,))

    def closure(inputs=inputs, targets=targets):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    loss = closure()
    optimizer.step(closure)
    optimizer.zero_grad()
print(round(loss.item(), 6), model[1].num_batches_tracked.item(), hashlib.sha1(model[0].weight.detach().numpy().tobytes()).hexdigest()[:12])
