"""Configuration code that asks torch's functions for their parameters, and leaves out what they do not take."""

import inspect
import logging
import typing

import torch
from torch.utils.data import DataLoader, TensorDataset

settings = {"batch_size": 16, "shuffle": True, "drop_last": True, "lr": 0.1, "num_workers": 0, "verbose": True}


def parameters(function):
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


class Called(torch.nn.Linear):
    def __call__(self, x, scale: float = 2.0, *, shift: int = 0):
        return super().__call__(x) * scale + shift


WAYS = {
    "specification": lambda: inspect.getfullargspec(DataLoader.__init__).args,
    "names": lambda: DataLoader.__init__.__code__.co_varnames,
    "parameters": lambda: parameters(DataLoader.__init__),
    "signature": lambda: inspect.signature(DataLoader).parameters,
}
for way, names in WAYS.items():
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(70, 4)), **{k: v for k, v in settings.items() if k in names()})
    model = Called(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    n = 0
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        n += 1
    print(way, loader.batch_size, n, loss.item())


def shown(ask):
    try:
        return ask()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"


FUNCTIONS = [
    DataLoader.__init__,
    DataLoader.__iter__,
    torch.save,
    torch.autograd.backward,
    torch.autograd.grad,
    torch.nn.Module.zero_grad,
    torch.optim.Optimizer.__init__,
    torch.optim.Optimizer.zero_grad,
    torch.optim.SGD.step,
    torch.optim.SGD.__init__,
    torch.amp.GradScaler.step,
    Called.__call__,
    logging.Logger.handle,
    print,
]
for function in FUNCTIONS:
    print(function.__qualname__, type(function).__name__, function.__module__, shown(lambda f=function: inspect.getfullargspec(f)))
    print(shown(lambda f=function: inspect.signature(f)), shown(lambda f=function: typing.get_type_hints(f)))
    for name in ("__defaults__", "__kwdefaults__", "__annotations__"):
        print(name, getattr(function, name, "none"))
    if hasattr(function, "__code__"):
        code = function.__code__
        names = (
            code.co_varnames if code.co_argcount else code.co_varnames[:2]
        )  # a function of args and kwargs tells nothing by its local names
        print(names, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_name, code.co_flags & 0x0C)
for wrong in (lambda: torch.optim.Optimizer([]), lambda: torch.save(), lambda: model.zero_grad(1, 2), lambda: DataLoader(batch=1)):
    print(shown(wrong))
