# Optimizers without torch.optim: a plain class, updates in a hook after each gradient, Lion by hand, and Lookahead around AdamW.
import hashlib

import torch


class Lion:
    def __init__(self, params, lr=1e-3, beta=0.9):
        self.params, self.lr, self.beta = list(params), lr, beta
        self.moments = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, moment in zip(self.params, self.moments, strict=True):
            p.sub_(self.lr * (self.beta * moment + (1 - self.beta) * p.grad).sign())
            moment.lerp_(p.grad, 1 - self.beta)


class Lookahead:
    def __init__(self, base, every=5):
        self.base, self.every, self.count = base, every, 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in base.param_groups]

    def zero_grad(self):
        self.base.zero_grad()

    @torch.no_grad()
    def step(self):
        self.base.step()
        self.count += 1
        if self.count % self.every == 0:
            for group, slow in zip(self.base.param_groups, self.slow, strict=True):
                for p, old in zip(group["params"], slow, strict=True):
                    p.copy_(old.lerp_(p, 0.5))


class InBackward:
    def __init__(self, params):
        for p in params:
            p.register_post_accumulate_grad_hook(self.update)

    @torch.no_grad()
    def update(self, p):
        p.sub_(0.01 * p.grad)
        p.grad = None

    def zero_grad(self): ...

    def step(self): ...


kinds = {"lion": Lion, "lookahead": lambda params: Lookahead(torch.optim.AdamW(params)), "in backward": InBackward}
for name, kind in kinds.items():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = kind(model.parameters())
    for _ in range(100):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(name, round(loss.item(), 6), hashlib.sha1(model[0].weight.detach().numpy().tobytes()).hexdigest()[:12])
