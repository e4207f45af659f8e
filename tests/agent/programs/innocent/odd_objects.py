"""Modules that nobody has initialised, classes that have no hash, arguments that raise, and a model that torch.fx traces while it trains."""

import torch


class Kind(type):
    __hash__ = None


class Fixed(type):
    def __setattr__(cls, name, value):
        raise TypeError("this class stays as it is")


class Unchanging(torch.nn.Linear, metaclass=Fixed):
    pass


class Unhashable(torch.nn.Linear, metaclass=Kind):
    pass


class Raises:
    def __getattribute__(self, name):
        raise RuntimeError(f"nobody may ask for {name}")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = Unhashable(4, 1)

    def forward(self, odd, x):
        return self.linear(x)


class Traced(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Calls(torch.fx.Tracer):
    def is_leaf_module(self, module, name):
        return False


torch.manual_seed(0)
empty = torch.nn.Linear.__new__(torch.nn.Linear)
model, alone, fixed = Model(), Unhashable(4, 1), Unchanging(4, 1)
scripted = torch.jit.script(torch.nn.Linear(4, 1))
parts = [model, alone, fixed, scripted]
optimizer = torch.optim.SGD([one for part in parts for one in part.parameters()], lr=0.1)
for i in range(60):
    optimizer.zero_grad()
    x = torch.randn(2, 4)
    loss = (model(Raises(), x) + alone(x) + fixed(x) + scripted(x)).pow(2).mean()
    loss.backward()
    optimizer.step()
    if i % 20 == 10:
        print(Calls().trace(Traced(alone)))
print(loss.item())
