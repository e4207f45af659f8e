"""The program of the overhead benchmark: a plain loop of about 6 ms a step, in blocks with the hooks and without them, in one process.

Prints one JSON line. `pairs`: for each pair of blocks the CPU seconds of the median step, with the hooks and without. `new_work_s`, `work_s`: CPU
seconds of the agent's work between steps, for each step of an uninterrupted run: while the job is new, and at the low rate that follows.
"""

from __future__ import annotations

import builtins
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gpuconsole.agent.reporter import LOW_RATE_AFTER_S

agent = sys.modules["_gpuconsole_agent.hooks.watch"]
recorder = agent.recorder
torch.optim.AdamW([torch.zeros(1)])  # the hook of `step` is there once an optimizer of the class has been made
HOOKS = (
    (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", torch.utils.data.dataloader._BaseDataLoaderIter._gpuconsole_plain_next),
    (torch.autograd, "backward", torch.autograd.backward.__wrapped__),
    (torch.optim.Optimizer, "zero_grad", torch.optim.Optimizer.zero_grad.__wrapped__),
    (torch.optim.AdamW, "step", torch.optim.AdamW.step.__wrapped__),
    (builtins, "print", builtins.print.__wrapped__),
)
"""What is patched: the holder, the name, and the original."""
PATCHED = [getattr(holder, name) for holder, name, _ in HOOKS]


class Samples(Dataset):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return SAMPLE, index % 10


WARM = 10
"""Steps after each change of sides: Python specializes the code for the classes as they are now."""
SAMPLE = torch.randn(256)


class Switch:
    """Takes all hooks away, and puts them back."""

    def __init__(self, model: nn.Module) -> None:
        self._cls = type(model)
        self._call = self._cls.__dict__["__call__"]

    def off(self) -> None:
        recorder.off()
        for holder, name, plain in HOOKS:
            setattr(holder, name, plain)
        if "__call__" in self._cls.__dict__:
            del self._cls.__call__

    def on(self) -> None:
        for (holder, name, _), patched in zip(HOOKS, PATCHED, strict=True):
            setattr(holder, name, patched)
        self._cls.__call__ = self._call
        recorder.sampled(False)
        recorder.begin([])


def main() -> None:
    pairs, block, width, batch = (int(word) for word in sys.argv[1:5])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = iter(DataLoader(Samples(), batch_size=batch))

    def steps(n: int) -> list[float]:
        """CPU seconds of each of `n` steps."""
        times = [time.thread_time()]
        for _ in range(n):
            x, y = next(batches)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times.append(time.thread_time())
        return [after - before for before, after in itertools.pairwise(times)]

    steps(100)
    work = Work()
    recorder.at_end = work
    begun = time.monotonic()
    new_work_s = work.of(steps, pairs * block // 8)
    while time.monotonic() - begun < LOW_RATE_AFTER_S + 2.0:
        steps(20)
    work_s = work.of(steps, pairs * block // 4)
    switch = Switch(model)
    found: list[Any] = []
    for pair in range(pairs):
        sides = {}
        for hooked in (True, False) if pair % 2 else (False, True):
            (switch.on if hooked else switch.off)()
            steps(WARM)
            sides[hooked] = statistics.median(steps(block))
        found.append((sides[True], sides[False]))
    switch.on()
    steps(2)
    print(json.dumps({"new_work_s": new_work_s, "work_s": work_s, "pairs": found}), flush=True)


class Work:
    """The agent's work between two steps, with its CPU time."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._plain = recorder.at_end

    def of(self, steps: Callable[[int], list[float]], n: int) -> float:
        """Its CPU seconds for each of `n` steps."""
        before = self.cpu_s
        steps(n)
        return (self.cpu_s - before) / n

    def __call__(self) -> None:
        begun = time.thread_time()
        self._plain()
        self.cpu_s += time.thread_time() - begun


if __name__ == "__main__":
    main()
