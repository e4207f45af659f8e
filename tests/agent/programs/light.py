"""Loops with short steps and stamps by hand: in most of these steps the agent marks little. `python light.py STEPS KIND...`, each in a forked process.

The passes sleep, so that other work on the machine changes their shares little.
"""

import atexit
import contextlib
import gc
import os
import sys
import time
import traceback

import torch
import torch._dynamo  # the first step of an optimizer imports it: for a second in each process, were it not here
from stamps import Stamps
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES_OF_A_BATCH = 8


class Samples(Dataset):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        time.sleep(0.0003 if index % SAMPLES_OF_A_BATCH == 0 else 0.0)
        return torch.full((64,), (index % 10) / 10), index % 10


class Slow(torch.autograd.Function):
    """A layer whose forward pass takes 0.6 ms and whose backward pass takes 1.2 ms for a batch of the usual size."""

    @staticmethod
    def forward(ctx, x):
        ctx.size = len(x)
        time.sleep(0.0006 * len(x) / SAMPLES_OF_A_BATCH)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.0012 * ctx.size / SAMPLES_OF_A_BATCH)
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        return Slow.apply(self.linear(x))


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        time.sleep(0.0004)
        return loss


def train(kind, steps):
    """The loop. Returns the samples of the steps after the first one, where the agent's account begins."""
    stamps, samples = Stamps(), 0
    model = Model()
    optimizer = SlowSGD(model.parameters(), lr=1e-3)
    batches = iter(DataLoader(Samples(), SAMPLES_OF_A_BATCH))
    held_out = DataLoader(Samples(), SAMPLES_OF_A_BATCH)

    def loss_of(x, y):
        nonlocal samples
        samples += len(x)
        with stamps.phase("forward"):
            return nn.functional.cross_entropy(model(x), y)

    def backward(loss):
        with stamps.phase("backward"):
            if kind == "grads":
                parameters = list(model.parameters())
                for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter.grad = gradient
            else:
                loss.backward()

    for step in range(steps):
        if kind == "evaluates" and step % 50 == 25:
            with stamps.only("eval"), torch.no_grad():
                model.eval()
                for _, (x, _) in zip(range(8), held_out, strict=False):
                    model(x)
                model.train()
        if kind == "saves" and step % 50 == 25:
            with stamps.phase("checkpoint"):
                time.sleep(0.03)  # it gathers what is saved
                torch.save({"model": model.state_dict()}, os.devnull)
        if kind == "rests" and step % 100 == 25:
            time.sleep(0.2)
        if kind == "second optimizer" and step == steps // 2:
            head = nn.Linear(10, 10)
            second = torch.optim.SGD(head.parameters(), lr=1e-3)
        if kind == "zeroes first":
            with stamps.phase("optimizer"):
                optimizer.zero_grad()
        with stamps.phase("data_wait"):
            x, y = next(batches)
        if kind == "grows":
            times = 1 + step * 7 % 5
            x, y = x.repeat(times, 1), y.repeat(times)
        if kind == "fails" and step % 40 == 30:
            with contextlib.suppress(RuntimeError):
                model(torch.zeros(SAMPLES_OF_A_BATCH, 5))
        if kind == "stops" and step % 40 == 30:
            with contextlib.suppress(RuntimeError):
                Slow.apply(torch.zeros(8)).backward()  # a gradient of no scalar
        if kind != "zeroes first":
            with stamps.phase("optimizer"):
                optimizer.zero_grad()
        if kind == "closure":

            def closure(x=x, y=y):
                loss = loss_of(x, y)
                backward(loss)
                return loss

            with stamps.phase("optimizer"):
                optimizer.step(closure)
        else:
            for _ in range(2 if kind == "accumulates" else 1):
                backward(loss_of(x, y))
            with stamps.phase("optimizer"):
                optimizer.step()
                if kind == "second optimizer" and step >= steps // 2:
                    second.step()
        stamps.step()
        samples *= step > 0
    stamps.write(kind)
    return samples


torch.set_num_threads(1)
gc.freeze()  # a look at all objects would copy the memory of torch into each process
for name in sys.argv[2:]:
    pid = os.fork()
    if pid == 0:
        sys.argv[0] = name
        try:
            torch.manual_seed(0)
            print(name, train(name, int(sys.argv[1])), sep=": ", flush=True)
        except BaseException:
            traceback.print_exc()
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(pid, 0)
