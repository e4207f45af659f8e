"""Short steps that are not the usual ones: `short_kinds.py KIND STEPS`."""

import atexit
import contextlib
import functools
import os
import sys

import torch
import torch._dynamo
from torch.utils.data import DataLoader, Dataset

kind, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
inputs = torch.ones(8, 8)


class Around(torch.optim.SGD):
    """Steps another optimizer within its own step, twice, as sharpness-aware minimization does."""

    def __init__(self, parameters, base):
        super().__init__(parameters, 0.0)
        self.base = base

    def step(self, closure=None):
        self.base.step()
        self.base.step()


class Samples(Dataset):
    def __len__(self):
        return 8000

    def __getitem__(self, index):
        return inputs[0]


def optimize(call):
    optimizer.zero_grad()
    call(inputs).square().mean().backward()
    optimizer.step()


if kind == "in_backward":
    per_parameter = {parameter: torch.optim.SGD([parameter], 0.01) for parameter in model.parameters()}

    def stepped(parameter):
        per_parameter[parameter].step()
        per_parameter[parameter].zero_grad()

    for parameter in per_parameter:
        parameter.register_post_accumulate_grad_hook(stepped)
    for _ in range(steps):
        model(inputs).square().mean().backward()
elif kind == "nested":
    optimizer = Around(model.parameters(), torch.optim.SGD(model.parameters(), 0.01))
    for _ in range(steps):
        optimize(model)
elif kind == "compiled_late":
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps // 2):
        optimize(model)
    late = torch.compile(model, backend="eager")
    for _ in range(steps - steps // 2):
        optimize(late)
elif kind == "forked":
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimize(model)
    if (child := os.fork()) == 0:
        for _ in range(steps):
            optimize(model)
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(child, 0)
elif kind == "loaded":
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader, done = DataLoader(Samples(), 4), 0
    while done < steps:
        for batch in loader:
            optimize(lambda _, batch=batch: model(batch))
            done += 1
            if done == steps:
                break
elif kind == "without_code":
    outer = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Sequential(model)))
    outer.forward = functools.partial(type(outer).forward, outer)  # as accelerate's hooks do: no function of Python
    optimizer = torch.optim.SGD(outer.parameters(), 0.01)
    for _ in range(steps):
        optimize(outer)
elif kind == "failed_saves":
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(steps):
        optimize(model)
        if number % 100 == 50:
            with contextlib.suppress(OSError, RuntimeError):
                torch.save(model.state_dict(), "there is no such folder/model.pt")
elif kind == "accumulates":
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader, done = DataLoader([inputs[0]] * 37 * 4, 4), 0  # the first batch of an epoch is now the first of a step, now the second
    while done < steps:
        for batch in loader:
            model(batch).square().mean().backward()
            done += 0.5
            if done == int(done):
                optimizer.step()
                optimizer.zero_grad()
                if done == steps:
                    break
