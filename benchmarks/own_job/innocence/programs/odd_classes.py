# Classes of models with metaclasses, __slots__, Generic, ABC, __init_subclass__ and properties: what is in them before and after.
import abc
import typing

import torch

T = typing.TypeVar("T")


class Registry(type(torch.nn.Module)):
    made = []

    def __new__(cls, name, bases, space):
        cls.made.append(name)
        return super().__new__(cls, name, bases, space)

    def __setattr__(cls, name, value):
        cls.made.append(f"set {name}")
        super().__setattr__(name, value)


class Base(torch.nn.Module, metaclass=Registry):
    children_made = []

    def __init_subclass__(cls, **kwargs):
        Base.children_made.append(cls.__name__)
        super().__init_subclass__(**kwargs)


class Net(Base):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, inputs):
        return self.layer(inputs)


class Head(torch.nn.Module, typing.Generic[T], abc.ABC):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(8, 1)

    @abc.abstractmethod
    def activate(self, value): ...

    def forward(self, inputs):
        return self.activate(self.out(inputs))


class Real(Head[int]):
    __slots__ = ("extra",)

    def activate(self, value):
        return value.tanh()


class Own(torch.optim.AdamW):
    __slots__ = ()


classes = (Base, Net, Head, Real, Own, torch.nn.Module, torch.optim.AdamW, torch.nn.Linear)
before = {cls.__name__: sorted(vars(cls)) for cls in classes}
torch.manual_seed(0)
net, head = Net(), Real()
optimizer = Own([*net.parameters(), *head.parameters()])
for _ in range(120):
    optimizer.zero_grad()
    loss = head(net(torch.randn(4, 8))).square().mean()
    loss.backward()
    optimizer.step()
for cls in classes:
    now = sorted(vars(cls))
    print(cls.__name__, cls.__qualname__, cls.__module__, len(now), sorted(set(now) ^ set(before[cls.__name__])))
print(Registry.made, Base.children_made, sorted(vars(optimizer)), sorted(vars(net)))
print(net.__call__.__qualname__, optimizer.step.__qualname__, type(net).__call__ is torch.nn.Module.__call__, round(loss.item(), 6))
