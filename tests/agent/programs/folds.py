"""A program that makes an optimizer, a DataLoader and an iterator of it again and again, as a loop over folds does. Prints what the agent holds then."""

import gc
import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader

COUNT, PART = 20_000, 1000
model = torch.nn.Linear(4, 1)
data = torch.ones(16, 4)


def fold(steps: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if steps:
        for batch in DataLoader(data, 16):
            model(batch).sum().backward()
            optimizer.step()


def seconds(first: int) -> float:
    begun = time.perf_counter()
    for n in range(first, first + PART):
        fold(n % 100 == 0)
    return time.perf_counter() - begun


for _ in range(30):
    fold(True)
times = [seconds(first) for first in range(0, COUNT, PART)]

# what the agent holds, and what is left of it once it is off
HOOKS = "_gpuconsole_agent.hooks."
of_agent = {name.removeprefix(HOOKS): module for name, module in sys.modules.items() if name.startswith(HOOKS)}
watch, steppers = of_agent["watch"].watch, of_agent["optimizer"].steppers
lists = {"optimizers": watch.optimizers, "iterators": watch.iterators, "keys": watch.keys, "stepped": steppers._stepped}
held = {name: len(lists[name]) for name in lists}
callbacks, files = len(gc.callbacks), len(os.listdir("/proc/self/fd"))
of_agent["guard"].switch.off("", None)
later = torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, 16)
later = *later, iter(later[1])
noted = [ref() for ref in (*watch.optimizers, *watch.iterators, *(made.ref for made in watch.made.values()))]
off = {
    "noted": sum(any(seen is made for seen in noted) for made in later),
    "callbacks": len(gc.callbacks) - callbacks,
    "files": len(os.listdir("/proc/self/fd")) - files,
}
print(json.dumps({"ratio": min(times[-3:]) / min(times[:3]), "held": held, "off": off}))
