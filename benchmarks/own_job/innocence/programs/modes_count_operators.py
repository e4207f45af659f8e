# Modes that count operators in every step: TorchDispatchMode, TorchFunctionMode, FlopCounterMode, a tensor subclass.
import collections

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


class Dispatch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.counts[getattr(function, "__name__", "?")] += 1
        return function(*args, **(kwargs or {}))


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
dispatch, functions, flops = Dispatch(), Functions(), []
per_step = collections.Counter()
for step in range(100):
    before = sum(dispatch.counts.values()), sum(functions.counts.values())
    with dispatch, functions:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    per_step[sum(dispatch.counts.values()) - before[0], sum(functions.counts.values()) - before[1]] += 1
    if step % 30 == 0:
        with FlopCounterMode(display=False) as counter:
            model(torch.randn(4, 8)).sum().backward()
        flops.append(counter.get_total_flops())
print(sorted(per_step.items()), flops, round(loss.item(), 6))
print(sorted(dispatch.counts.items()))
print(sorted(functions.counts.items()))
