"""A change of torch_compile with CUDA graphs on a simulated card, and back: prints the memory as JSON. FOLDER: for what is compiled."""

from __future__ import annotations

import json
import os
import sys
import weakref
from typing import Any

import torch
from torch import nn

from gpuconsole.agent.hooks.changes.change import Refused
from gpuconsole.agent.hooks.changes.model import TorchCompile
from gpuconsole.agent.hooks.watch import Watch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu() * 1.5


def work() -> None:
    for _ in range(3):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
    model.zero_grad()


def graphs() -> int:
    dynamo: Any = sys.modules["torch._dynamo.utils"]
    return int(dynamo.counters["stats"]["unique_graphs"])


found: dict[str, Any] = {}
watch, model, change = Watch(), Model().cuda(), TorchCompile()
watch.roots.append(weakref.ref(model))
watch.compiled_folder = os.environ["FOLDER"]
work()
found["before"] = torch.cuda.memory_allocated()
counts = []
for name, value in (("on", "reduce-overhead"), ("off", "off"), ("on_again", "reduce-overhead"), ("tidied", "off")):
    change.set(watch, value)
    work()
    counts.append(graphs())
    if name == "tidied":
        change.tidy(after_s=0.0)
    found[name] = torch.cuda.memory_allocated()
found["graphs"] = counts

own = torch.compile(lambda t: t * 2.0, mode="reduce-overhead")
own(torch.ones(3, device="cuda"))
for value in ("reduce-overhead", "off"):
    change.set(watch, value)
    work()
change.tidy(after_s=0.0)
before = graphs()
own(torch.ones(3, device="cuda"))
found["compiled_again"] = graphs() - before

peak = torch.empty(int(torch.cuda.mem_get_info()[0] - 0.1e9), dtype=torch.uint8, device="cuda")
del peak
torch.cuda.empty_cache()
try:
    change.set(watch, "reduce-overhead")
except Refused as refused:
    found["no_room"] = str(refused)
print(json.dumps(found))
