# Exceptions in backward, in an optimizer's step, a closure, a hook, a scheduler, a collate function and a save: all tracebacks are printed.
import sys
import traceback

import torch
from torch.utils.data import DataLoader, TensorDataset


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs * 1

    @staticmethod
    def backward(context, gradient):
        raise ArithmeticError("no gradient")


class Own(torch.optim.SGD):
    bad = False

    def step(self, closure=None):
        if self.bad:
            raise OverflowError("in step")
        return super().step(closure)


def shown(what):
    kind, error, place = sys.exc_info()
    print(what, kind.__name__, str(error)[:60].splitlines()[0])
    for frame in traceback.extract_tb(place):
        print("   ", frame.filename.rsplit("/", 1)[-1], frame.lineno, frame.name)


def fail(*_, **__):
    raise LookupError("failed")


torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = Own(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 5 else fail())


def bad_step():
    Own.bad = True
    try:
        optimizer.step()
    finally:
        Own.bad = False


def hooked():
    handle = model.register_forward_hook(fail)
    try:
        model(torch.ones(1, 8))
    finally:
        handle.remove()


def loads():
    for _ in DataLoader(TensorDataset(torch.ones(8)), collate_fn=fail):
        pass


cases = {
    "backward": lambda: Bad.apply(model(torch.ones(1, 8))).sum().backward(),
    "step": bad_step,
    "closure": lambda: optimizer.step(fail),
    "hook": hooked,
    "scheduler": lambda: [scheduler.step() for _ in range(9)],
    "collate": loads,
    "save": lambda: torch.save(lambda: 0, "never.pt"),
}
for part in range(3):
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    for what, case in cases.items():
        try:
            case()
        except Exception:
            shown(f"{part} {what}")
print(round(loss.item(), 6))
